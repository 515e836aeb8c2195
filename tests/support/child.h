// What can only be tested in a process of its own: limits, missing rights, system calls that the kernel
// refuses.
#pragma once

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>

namespace trireme::testing {

/// What a child's body returns where the machine does not let it try.
constexpr int kNotPossible = 77;

/// Runs `body` in a forked child, whose expectations count here. True unless the body returned
/// `kNotPossible`.
template <class Body>
bool possible_in_child(Body&& body) {
  std::cout << std::flush;
  const pid_t id = ::fork();
  if (id == 0) {
    int code = 1;
    try {
      code = body();
    } catch (const std::exception& error) {
      std::cerr << "child: " << error.what() << std::endl;
    }
    if (code == 0 && ::testing::Test::HasFailure()) code = 1;
    std::cout << std::flush;
    std::fflush(nullptr);
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(id, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotPossible) return false;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child ended with status " << status;
  return true;
}

/// From now on this thread's system call `number` fails with `code` where argument number `argument` has any
/// bit of `bits` set; always, for no bits. False where the kernel does not offer it.
inline bool refuse_system_call(int number, int code, int argument = 0, uint32_t bits = 0) {
  const auto argument_offset =
      static_cast<uint32_t>(offsetof(seccomp_data, args) + sizeof(uint64_t) * argument);
  const uint8_t to_bits = bits ? 0 : 2;  // instructions to pass over
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 4),
      BPF_JUMP(BPF_JMP | BPF_JA, to_bits, 0, 0),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument_offset),  // its low half, on a little-endian machine
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(code)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace trireme::testing
