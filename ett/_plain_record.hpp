// The fields of a plain record, a column each, in the order in which canonical JSON has them: the parser writes rows of
// them, the accounting keeps them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ett {

enum Column : size_t {
  kAtt, kBMono, kBlocking, kBoot, kC0, kC1, kCommitted, kDropped, kEMono, kEv, kGen, kHost, kId, kInferred, kJob,
  kMono, kName, kParent, kPid, kRank, kSamples, kSamplesInferred, kSeq, kSrc, kStep, kV, kWall, kWorkerPid, kWorld, kNumColumns
};
constexpr std::array<std::string_view, kNumColumns> kColumns = {
    "att", "b_mono", "blocking", "boot", "c0", "c1", "committed", "dropped", "e_mono", "ev", "gen", "host", "id", "inferred", "job",
    "mono_ns", "name", "parent", "pid", "rank", "samples", "samples_inferred", "seq", "src", "step", "v", "wall_ns", "worker_pid", "world"};
constexpr size_t kRowWidth = kNumColumns + 1;  // the last: the bits of the columns that the record has

constexpr bool is_text_column(size_t c) {
  return c == kBoot || c == kEv || c == kHost || c == kJob || c == kName || c == kSrc;
}
constexpr bool is_bool_column(size_t c) { return c == kBlocking || c == kCommitted || c == kInferred || c == kSamplesInferred; }
// What varies from record to record of one kind and writer; the rest of a row is the same for very many of them.
constexpr std::array<size_t, 15> kVarying = {kBMono, kBlocking, kC0, kC1, kCommitted, kDropped, kEMono, kId,
                                             kMono, kParent, kSamples, kSeq, kStep, kWall, kWorkerPid};
constexpr bool is_varying(size_t c) {
  for (size_t v : kVarying)
    if (v == c) return true;
  return false;
}
constexpr std::array<std::string_view, 5> kPlainKinds = {"step", "heartbeat", "span_begin", "span_end", "step_begin"};

}  // namespace ett
