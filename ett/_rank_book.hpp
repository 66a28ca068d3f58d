// What is known of a rank before its time is swept: its spans, which steps stay open, how far it got. Read on as records
// come in the order of their time; a rank whose records came otherwise is read again.
#pragma once

#include <set>
#include <tuple>
#include <unordered_map>

#include "_rank_sweep.hpp"

namespace ett {

using Clocks = std::map<std::pair<int64_t, int64_t>, int64_t>;  // (host, boot) -> mono_ns to normalised time

inline int64_t clock_of(const Stream& s, const Clocks& clocks) { return clocks.at({s.text(kHost), s.text(kBoot)}); }

class RankBook {
 public:
  std::vector<size_t> seen;  // rows of each step stream of the rank
  int64_t last_end = kNone;  // of its steps

  void add_stream(size_t stream, size_t kind) {
    (kind == 4 ? begin_streams_ : span_streams_).push_back({stream, 0});
  }

  size_t num_unread(const RankSweep& rank) const {
    size_t number = 0;
    for (size_t p = 0; p < rank.parts.size(); ++p) number += rank.parts[p].reader.stream->size() - seen[p];
    return number;
  }

  // The earliest instant that a record which was not read yet tells of.
  int64_t touched(const LogColumns& log, RankSweep& rank, const Clocks& clocks) const {
    int64_t least = kForever;
    for (size_t p = 0; p < rank.parts.size(); ++p)
      for (size_t row = seen[p]; row < rank.parts[p].reader.stream->size(); ++row)
        least = std::min(least, rank.parts[p].reader.b(row) + rank.parts[p].clock);
    for (const auto* streams : {&span_streams_, &begin_streams_})
      for (const auto& [stream, from] : *streams) {
        const Stream& s = *log.streams[stream];
        if (from == s.size()) continue;
        StreamReader reader(&s);
        const int64_t clock = clock_of(s, clocks);
        for (size_t row = from; row < s.size(); ++row) {
          least = std::min(least, reader.mono(row) + clock);
          if (s.kind == 4 && s.has(kBMono)) least = std::min(least, reader.raw(kBMono, row) + clock);
        }
      }
    return least;
  }

  void forget(RankSweep& rank) {
    std::fill(seen.begin(), seen.end(), 0);
    for (auto* streams : {&span_streams_, &begin_streams_})
      for (auto& [stream, from] : *streams) from = 0;
    begins_.clear(), running_.clear(), begun_.clear();
    last_end = last_mark_ = last_begin_ = last_stop_ = kNone, until_ = first_ = 0;
    rank.spans.clear(), rank.blocking.clear(), rank.busy_until.clear(), rank.ended_up_to.clear();
    first_ended_ = kNone;
  }

  // Take in span records; false where one is earlier than one that was taken in before.
  bool read_spans(const LogColumns& log, RankSweep& rank, const Clocks& clocks,
                  const std::unordered_map<std::string, int>& components) {
    std::vector<Mark> marks;
    for (auto& [stream, from] : span_streams_) {
      const Stream& s = *log.streams[stream];
      if (from == s.size()) continue;
      StreamReader reader(&s);
      const int64_t clock = clock_of(s, clocks);
      for (; from < s.size(); ++from)
        marks.push_back({reader.mono(from) + clock, reader.raw(kSeq, from), stream, from, reader.raw(kId, from),
                         s.has(kParent) ? reader.raw(kParent, from) : kNone});
    }
    sort(log, marks);
    for (const Mark& mark : marks) {
      if (last_mark_ != kNone && mark.time <= last_mark_ && &mark == &marks[0]) return false;
      last_mark_ = mark.time;
      const Stream& s = *log.streams[mark.stream];
      const Key writer{s.text(kHost), s.text(kBoot), s.key[kPid], s.text(kSrc), mark.id};
      if (s.kind == 2) {
        begin_span(log, rank, mark, writer, components);
      } else if (auto found = running_.find(writer); found != running_.end()) {
        rank.spans[found->second].ended = mark.time;  // `finish` finds where it ends, and what follows from that
        running_.erase(found);
      }
    }
    return true;
  }

  // Take in steps; false where one begins before one that was taken in before.
  bool look_ahead(const LogColumns& log, RankSweep& rank, const Clocks& clocks) {
    std::vector<Begun> begun;
    for (auto& [stream, from] : begin_streams_) {
      const Stream& s = *log.streams[stream];
      if (from == s.size()) continue;
      StreamReader reader(&s);
      const int64_t clock = clock_of(s, clocks);
      for (; from < s.size(); ++from) {
        StepRow step;
        step.begin = (s.has(kBMono) ? reader.raw(kBMono, from) : reader.mono(from)) + clock;
        step.number = s.has(kStep) ? reader.raw(kStep, from) : kForever;
        step.gen = s.gen(), step.is_open = true, step.ref = row_ref(stream, from) | kOpen;
        begun.push_back({step, kForever, {reader.mono(from) + clock, reader.raw(kSeq, from)}});
      }
    }
    std::sort(begun.begin(), begun.end(), [](const Begun& a, const Begun& b) {
      return std::tuple(a.step.begin, a.written) < std::tuple(b.step.begin, b.written);
    });
    if (!begun.empty()) {
      const bool is_late = last_stop_ != kNone && begun[0].step.begin < last_stop_;
      if (is_late || (!begun_.empty() && begun[0].step.begin <= begun_.back().step.begin)) return false;
      begun_.insert(begun_.end(), begun.begin(), begun.end());
    }
    std::pair<int64_t, int64_t> place{kNone, kNone};
    int64_t* number = nullptr;
    for (size_t p; (p = rank.next_part(seen)) < rank.parts.size();) {
      const StepRow s = rank.load(rank.parts[p], seen[p]++, false);
      if (last_begin_ != kNone && s.begin < last_begin_) return false;
      last_begin_ = s.begin;
      if (first_ended_ == kNone) first_ended_ = s.begin;
      last_end = std::max(last_end, s.end), last_stop_ = std::max(last_stop_, s.stop);
      if (!number || place != std::pair{s.gen, s.stretch}) {
        place = {s.gen, s.stretch};
        number = &rank.ended_up_to.try_emplace(place, s.number).first->second;
      }
      *number = std::max(*number, s.number);
      while (until_ < begun_.size() && begun_[until_].step.begin < s.stop) ++until_;
      while (first_ < until_ && begun_[first_].least_stop <= s.begin) ++first_;
      for (size_t j = first_; j < until_; ++j)
        if (begun_[j].step.begin < s.stop) begun_[j].least_stop = std::min(begun_[j].least_stop, s.stop);
    }
    return true;
  }

  // What depends on the attempt's end as it is now: spans and steps that are still open.
  void finish(RankSweep& rank) {
    const Facts& facts = *rank.facts;
    size_t changed = rank.blocking.empty() ? 0 : rank.busy_until.size();
    for (size_t i = 0; i < rank.spans.size(); ++i) {
      SpanRow& span = rank.spans[i];
      const int64_t limit = std::max(span.begin, facts.stop_after(span.begin, facts.end));
      const int64_t end = std::min(limit, span.ended == kForever ? limit : std::max(span.ended, span.begin));
      span.was_closed = span.ended != kForever && span.ended <= limit;
      if (end != span.end) span.end = end, changed = 0;
    }
    for (size_t i = rank.blocking.empty() ? 0 : rank.blocking.back() + 1; i < rank.spans.size(); ++i)
      if (rank.spans[i].is_blocking) rank.blocking.push_back(i);
    rank.busy_until.resize(rank.blocking.size());
    for (size_t i = changed; i < rank.blocking.size(); ++i)
      rank.busy_until[i] = std::max(i ? rank.busy_until[i - 1] : kNone, rank.spans[rank.blocking[i]].end);
    rank.opens.clear();
    rank.last_stop = last_stop_, rank.first_own_step = first_ended_;
    for (const Begun& b : begun_) {
      const int64_t limit = facts.stop_after(b.step.begin, std::max(facts.end, last_stop_));
      if (b.least_stop == kForever || b.least_stop > limit) rank.opens.push_back(rank.opened(b.step));
    }
    std::stable_sort(rank.opens.begin(), rank.opens.end(),
                     [](const StepRow& a, const StepRow& b) { return a.key() < b.key(); });
    for (const StepRow& open : rank.opens) {
      rank.last_stop = std::max(rank.last_stop, open.stop);
      rank.first_own_step = rank.first_own_step == kNone ? open.begin : std::min(rank.first_own_step, open.begin);
    }
  }

 private:
  struct Mark {
    int64_t time, seq;
    size_t stream, row;
    int64_t id, parent;
  };
  struct Begun {
    StepRow step;
    int64_t least_stop = kForever;
    std::array<int64_t, 2> written;
  };
  using Key = std::array<int64_t, 5>;  // host, boot, pid, src, id
  struct From {
    size_t stream, row;
  };
  std::vector<From> span_streams_, begin_streams_;
  std::map<Key, std::pair<int64_t, Key>> begins_;  // name, parent
  std::map<Key, size_t> running_;
  std::vector<Begun> begun_;
  size_t first_ = 0, until_ = 0;  // of `begun_`: those that a later step may still end
  int64_t last_mark_ = kNone, last_begin_ = kNone, last_stop_ = kNone, first_ended_ = kNone;

  static void sort(const LogColumns& log, std::vector<Mark>& marks) {
    auto text = [&](const Stream& s, size_t c) { return s.has(c) ? std::string_view(log.texts[s.key[c]]) : ""; };
    std::sort(marks.begin(), marks.end(), [&](const Mark& a, const Mark& b) {
      if (a.time != b.time) return a.time < b.time;
      const Stream &p = *log.streams[a.stream], &q = *log.streams[b.stream];
      const auto left = std::tuple(text(p, kSrc), a.seq, text(p, kHost), text(p, kBoot), p.key[kPid], text(p, kEv));
      return left < std::tuple(text(q, kSrc), b.seq, text(q, kHost), text(q, kBoot), q.key[kPid], text(q, kEv));
    });
  }

  void begin_span(const LogColumns& log, RankSweep& rank, const Mark& mark, const Key& writer,
                  const std::unordered_map<std::string, int>& components) {
    const Stream& s = *log.streams[mark.stream];
    Key parent = writer;
    parent[4] = mark.parent;
    begins_[writer] = {s.key[kName], mark.parent == kNone ? Key{kNone} : parent};
    SpanRow span;
    span.begin = mark.time, span.name = s.key[kName], span.rank = rank.rank, span.end = kNone;
    span.is_blocking = !s.has(kBlocking) || StreamReader(&s).raw(kBlocking, mark.row) == 1;
    span.ref = row_ref(mark.stream, mark.row);
    std::set<Key> passed;
    for (Key at = writer; passed.insert(at).second;) {
      auto found = begins_.find(at);
      if (found == begins_.end()) break;
      auto known = components.find(log.texts[found->second.first]);
      if (known != components.end()) {
        span.component = known->second;
        break;
      }
      at = found->second.second;
    }
    running_[writer] = rank.spans.size();
    rank.spans.push_back(span);
  }
};

}  // namespace ett
