// What the program's exit code tells.
#pragma once

namespace trireme::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;    ///< the run failed
inline constexpr int kUserError = 2;  ///< wrong options, files or arguments
/// A rank's alone, read by the launcher, which gives 1 in its place: another rank ended or did not answer, so
/// that the cause is likely another rank's.
inline constexpr int kPeerLost = 3;
/// As in a shell: 128 and the number of the signal that ended the run.
inline constexpr int kSignalBase = 128;

}  // namespace trireme::cli
