#include "trireme/zero/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace trireme::zero {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TraceTest : public testing::Test {
 protected:
  static std::unique_ptr<Unit> unit(const std::string& name) {
    return std::make_unique<Unit>(name, std::vector<ParameterSpec>{{"w", {4}}}, Options{}, comm::Group(),
                                  std::make_shared<core::BufferPool>());
  }
  std::vector<Unit*> upcoming() const { return {trace_.upcoming().begin(), trace_.upcoming().end()}; }

  // One pass; what the trace said about it, put together.
  std::string pass(const std::vector<Unit*>& uses) {
    std::string faults;
    for (Unit* use : uses) faults += trace_.visit(*use);
    return faults + trace_.end_pass();
  }

  std::unique_ptr<Unit> a_ = unit("a"), b_ = unit("b"), c_ = unit("c");
  Unit *a = a_.get(), *b = b_.get(), *c = c_.get();
  Trace trace_;
};

TEST_F(TraceTest, PredictsWhatTheLastPassDid) {
  trace_.visit(*a);
  EXPECT_TRUE(upcoming().empty());
  trace_.visit(*b);
  trace_.visit(*a);
  trace_.end_pass();
  EXPECT_THAT(upcoming(), ElementsAre(a, b, a));
  EXPECT_EQ(trace_.visit(*a), "");
  EXPECT_THAT(upcoming(), ElementsAre(b, a));
  EXPECT_EQ(trace_.visit(*b), "");
  EXPECT_EQ(trace_.visit(*a), "");
  EXPECT_EQ(trace_.end_pass(), "");
  EXPECT_THAT(upcoming(), ElementsAre(a, b, a));
}

TEST_F(TraceTest, AnotherUnitThanExpectedEndsThePredictionAndIsLearnt) {
  pass({a, b, c});
  trace_.visit(*a);
  const std::string fault = trace_.visit(*c);  // b is skipped
  EXPECT_THAT(fault, HasSubstr("use 2 of a pass was expected to be unit 'b'; got unit 'c'"));
  EXPECT_TRUE(upcoming().empty());
  EXPECT_EQ(trace_.end_pass(), "");
  EXPECT_THAT(upcoming(), ElementsAre(a, c));
  EXPECT_EQ(pass({a, c}), "");
}

TEST_F(TraceTest, MoreAndLessThanExpectedAreChangesToo) {
  pass({a, b});
  EXPECT_THAT(pass({a, b, a}), HasSubstr("use 3 of a pass was expected to be the pass's end; got unit 'a'"));
  EXPECT_THAT(upcoming(), ElementsAre(a, b, a));
  EXPECT_THAT(pass({a}), HasSubstr("use 2 of a pass was expected to be unit 'b'; got the pass's end"));
  EXPECT_THAT(upcoming(), ElementsAre(a));
  EXPECT_THAT(pass({b}), HasSubstr("unit 'a'; got unit 'b'"));
  EXPECT_THAT(upcoming(), ElementsAre(b));
}

TEST_F(TraceTest, AnEmptyPassChangesNothing) {
  EXPECT_EQ(pass({}), "");
  pass({a, b});
  EXPECT_EQ(pass({}), "");
  EXPECT_THAT(upcoming(), ElementsAre(a, b));
}

}  // namespace
}  // namespace trireme::zero
