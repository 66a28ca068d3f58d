// One rank of one attempt: its steps in order, its spans, and its time as pieces from begin to end (rules R5 to R13, R20).
// The same rules over Python objects are in ett/step_credit.py, ett/rank_spans.py and ett/rank_timeline.py.
#pragma once

#include <deque>
#include <optional>
#include <stdexcept>

#include "_log_columns.hpp"

namespace ett {

constexpr int64_t kForever = INT64_MAX;

enum Label : int64_t {
  kNewData, kNewDataRecovered, kReplay, kInFlightStep, kCursorUnknown, kInferredCompile, kStepAfterEnd, kAfterEnd,
  kInprocessRestart, kUntrackedInit, kUntrackedLoop, kUntrackedShutdown, kInFlight, kUnsavedTail, kFirstSpanLabel
};
constexpr int64_t kLabelsOfSpan = 7;  // a component each, and "after train_end"
enum Weakness : int { kInit = 1, kCompilation = 2, kWasted = 3, kEffective = 4, kShutdown = 5 };
constexpr std::array<int, kFirstSpanLabel> kWeakness = {kEffective, kEffective, kWasted, kWasted, kWasted, kCompilation, kShutdown,
                                                        kShutdown, kInit, kInit, kWasted, kShutdown, kWasted, kWasted};
inline int weakness(int64_t label) {
  if (label < kFirstSpanLabel) return kWeakness[label];
  const auto component = (label - kFirstSpanLabel) % kLabelsOfSpan;
  return component == 6 ? kShutdown : static_cast<int>(component);
}

// What a piece or a step came from: -1, a row of a stream (kOpen: a step_begin), a recovered step, or a span.
constexpr int64_t kOpen = int64_t{1} << 60, kExtra = int64_t{1} << 61, kSpan = int64_t{1} << 62;
inline int64_t row_ref(size_t stream, size_t row) { return static_cast<int64_t>(stream << 40 | row); }
inline size_t stream_of_ref(int64_t ref) { return static_cast<size_t>(ref & ~kOpen) >> 40; }
inline size_t row_of_ref(int64_t ref) { return static_cast<size_t>(ref) & ((size_t{1} << 40) - 1); }

struct StepRow {
  int64_t begin = 0, end = 0, stop = 0, number = 0, c0 = kNone, c1 = kNone, gen = 0, stretch = 0, ref = -1;
  bool is_open = false, is_recovered = false;

  std::array<int64_t, 3> key() const { return {begin, end, number}; }
  int64_t time_at(int64_t cursor) const {
    if (c0 == kNone || c1 == kNone || cursor >= c1) return end;
    if (cursor <= c0) return begin;
    return begin + static_cast<int64_t>(static_cast<__int128>(end - begin) * (cursor - c0) / (c1 - c0));
  }
};

struct SpanRow {
  int64_t begin = 0, ended = kForever, end = 0, name = 0, ref = -1, rank = 0;  // `ended`: its end record's time
  int component = -1;
  bool is_blocking = true, was_closed = false;
};

struct World {
  int64_t begin = 0, end = 0, gen = 0;
  std::vector<int64_t> ranks, steppers;
};

// What is known of the attempt beside its plain records; times are normalised.
struct Facts {
  int64_t start = 0, cut = 0, end = 0, high = kNone;
  bool is_clean = false, infer_compile = false, has_time = true;
  std::vector<int64_t> faults;
  std::vector<std::pair<int64_t, int64_t>> unknown;
  std::map<int64_t, int64_t> restores;  // stretch -> cursor
  std::map<int64_t, int64_t> train_ends;
  std::vector<World> worlds;

  int64_t stretch(int64_t time) const {
    return faults.empty() ? 0 : std::upper_bound(faults.begin(), faults.end(), time) - faults.begin();
  }
  int64_t stop_after(int64_t begin, int64_t until) const {
    const auto index = static_cast<size_t>(stretch(begin));
    return index < faults.size() && faults[index] < until ? faults[index] : until;
  }
  bool is_unknown(int64_t time) const {
    for (const auto& [begin, end] : unknown)
      if (begin <= time && time < end) return true;
    return false;
  }
};

// The last step number that every writing rank of a generation has ended, for each stretch between faults.
struct Frontiers {
  std::map<std::pair<int64_t, int64_t>, int64_t> numbers;
  int64_t of(int64_t gen, int64_t stretch) const {
    auto found = numbers.find({gen, stretch});
    return found == numbers.end() ? kNone : found->second;
  }
};

// Global cursors of steps whose writers know only their own samples, by stretch and step number.
struct CursorTable {
  struct Stretch {
    DeltaColumn numbers, c0, c1;
    int64_t first() const { return numbers[0]; }
  };
  std::map<int64_t, Stretch> stretches;
};

// One rank's way through a table.
class CursorReader {
 public:
  explicit CursorReader(const CursorTable* table = nullptr) : table_(table) {}
  explicit operator bool() const { return table_ != nullptr; }

  std::pair<int64_t, int64_t> of(int64_t stretch, int64_t number) {
    if (stretch != stretch_) {
      const CursorTable::Stretch& found = table_->stretches.at(stretch);
      numbers_ = DeltaReader(&found.numbers), c0_ = DeltaReader(&found.c0), c1_ = DeltaReader(&found.c1);
      stretch_ = stretch, at_ = 0;
    }
    const size_t size = numbers_.size();
    if (at_ >= size || numbers_[at_] != number) {
      if (at_ + 1 < size && numbers_[at_ + 1] == number) ++at_;
      else at_ = find(number, size);
    }
    return {c0_[at_], c1_[at_]};
  }

 private:
  const CursorTable* table_;
  int64_t stretch_ = kNone;
  size_t at_ = 0;
  DeltaReader numbers_, c0_, c1_;

  size_t find(int64_t number, size_t size) {
    size_t low = 0, high = size;
    while (low < high) {
      const size_t middle = (low + high) / 2;
      numbers_[middle] < number ? low = middle + 1 : high = middle;
    }
    return low;
  }
};

struct Piece {
  int64_t begin, end, label, ref;
  int64_t source;  // where the rank's own piece began: what tells two pieces apart that look alike
};

// Where a rank's sweep stands; copied to go on from here again later.
struct RankState {
  std::vector<size_t> at;  // next row of each step stream
  size_t open_at = 0, span_at = 0;
  int64_t now = 0, num_steps = 0, high = kNone, last_begin = kNone, last_ref = -1, first_begin = kNone;
  StepRow prev, ahead;
  bool has_prev = false, has_ahead = false, has_recovered = false;
  StepRow after_hole;  // the step that follows a recovered one
  size_t ahead_part = SIZE_MAX;  // whose row `ahead` is, while it can be put back
  StepRow prev_before;
  bool has_prev_before = false;
  int64_t best_end = kNone, best_c1 = kNone;
  bool recovered_any = false, doubted_any = false;
  struct Running {
    int64_t begin, kind, order, end;
    StepRow step;
    size_t span;
    int64_t high = kNone;  // the mark before the step (R8)
    bool operator<(const Running& o) const {  // the heap's top: the latest begin, a span before a step, the later record
      if (begin != o.begin) return begin < o.begin;
      if (kind != o.kind) return kind > o.kind;
      return order < o.order;
    }
  };
  std::vector<Running> running;
  struct Taken {  // ended steps of one generation and stretch
    int64_t gen, stretch, complete = kNone, incomplete = kForever;  // the highest number, and the lowest
  };
  std::vector<Taken> taken;

  void note_taken(const StepRow& s, bool is_complete) {
    auto found = taken.rbegin();
    while (found != taken.rend() && (found->gen != s.gen || found->stretch != s.stretch)) ++found;
    Taken& own = found == taken.rend() ? taken.emplace_back(Taken{s.gen, s.stretch}) : *found;
    if (is_complete) own.complete = std::max(own.complete, s.number);
    else own.incomplete = std::min(own.incomplete, s.number);
  }
};

class RankSweep {
 public:
  struct Part {
    size_t stream;
    int64_t clock;
    StreamReader reader;
  };
  int64_t rank = 0;
  std::vector<Part> parts;          // of step records
  std::vector<SpanRow> spans;       // in the order of their begin records
  std::vector<size_t> blocking;     // of spans
  std::vector<int64_t> busy_until;  // the latest end of the blocking spans up to each
  std::vector<StepRow> opens;       // by begin, end, number
  std::map<std::pair<int64_t, int64_t>, int64_t> ended_up_to;  // (gen, stretch) -> highest number
  int64_t first_own_step = kNone, first_step = kNone, last_stop = kNone, train_end = kNone, compiled_until = kNone;
  const Facts* facts = nullptr;
  const Frontiers* frontiers = nullptr;
  CursorReader cursors;         // none where every step has its own
  std::vector<StepRow> extras;  // recovered steps
  RankState state, saved;
  bool has_saved = false;
  int64_t limit = kForever;

  StepRow load(Part& part, size_t i, bool with_cursor = true) {
    StepRow s;
    s.begin = part.reader.b(i) + part.clock;
    s.end = std::max(s.begin, part.reader.e(i) + part.clock);
    s.stretch = facts->stretch(s.begin);
    s.stop = facts->stop_after(s.begin, s.end);
    s.number = part.reader.number(i);
    s.gen = part.reader.stream->gen();
    s.ref = row_ref(part.stream, i);
    if (!with_cursor) return s;
    if (cursors) std::tie(s.c0, s.c1) = cursors.of(s.stretch, s.number);
    else s.c0 = part.reader.c0(i), s.c1 = part.reader.c1(i);
    return s;
  }

  // The part whose next row comes first; parts.size() where there is none.
  size_t next_part(const std::vector<size_t>& at) {
    size_t best = parts.size();
    std::array<int64_t, 5> best_key{};
    for (size_t p = 0; p < parts.size(); ++p) {
      if (at[p] >= parts[p].reader.stream->size()) continue;
      if (parts.size() == 1) return p;
      auto& r = parts[p].reader;
      const size_t i = at[p];
      const int64_t clock = parts[p].clock, begin = r.b(i) + clock;
      const std::array<int64_t, 5> key{begin, std::max(begin, r.e(i) + clock), r.number(i), r.mono(i) + clock,
                                       r.raw(kSeq, i)};
      if (best == parts.size() || key < best_key) best = p, best_key = key;
    }
    return best;
  }

  bool is_complete(const StepRow& s) {
    if (s.is_open) return false;
    if (s.gen != frontier_gen_ || s.stretch != frontier_stretch_ || !has_frontier_) {
      frontier_gen_ = s.gen, frontier_stretch_ = s.stretch, has_frontier_ = true;
      frontier_ = frontiers->of(s.gen, s.stretch);
    }
    return s.number <= frontier_ && frontier_ != kNone;
  }
  void forget_frontier() { has_frontier_ = false; }

  void begin(int64_t now) {
    state = RankState{};
    state.at.assign(parts.size(), 0);
    state.now = now;
    state.high = facts->high;
    queue_.clear();
    limit = kForever;
  }

  // Keep in `saved` where the sweep stands when it reaches `time`, so that it can go on from there with more records.
  void save_at(int64_t time) { limit = time, has_saved = false; }
  void save() {
    if (has_saved) return;
    has_saved = true, saved = state, num_extras_then_ = extras.size();
    last_stop_then_ = last_stop, first_step_then_ = first_step;
    opens_then_.clear();
    for (size_t i = 0; i < saved.open_at; ++i) opens_then_.push_back(opens[i].ref);
    if (!saved.has_ahead || saved.ahead_part == SIZE_MAX) return;
    if (saved.ahead.is_recovered) --num_extras_then_;  // a record that is still to come may lie in that hole
    --saved.at[saved.ahead_part];
    saved.prev = saved.prev_before, saved.has_prev = saved.has_prev_before;
    saved.has_ahead = saved.has_recovered = false, saved.ahead_part = SIZE_MAX;
  }
  bool go_on() {
    state = saved;
    extras.resize(num_extras_then_);
    queue_.clear();
    limit = kForever;
    state.at.resize(parts.size(), 0);
    for (auto& item : state.running)
      item.end = item.kind == 0 ? spans[item.span].end : item.step.is_open ? opened(item.step).stop
                                                       : facts->stop_after(item.step.begin, item.step.end);
    return !state.has_ahead && !state.has_recovered;
  }

  // Whether what `saved` took in until then, and how it was labelled, is what it would be now. Asked before `go_on`.
  bool is_as_saved(int64_t until) const {
    auto decides = [&](int64_t then, int64_t now) { return then != now && (then < until || now < until); };
    auto known = [](int64_t time) { return time == kNone ? kForever : time; };
    if (decides(last_stop_then_, last_stop) || decides(known(first_step_then_), known(first_step))) return false;
    for (const auto& own : saved.taken) {
      const int64_t frontier = frontiers->of(own.gen, own.stretch);
      if (own.complete != kNone && (frontier == kNone || own.complete > frontier)) return false;
      if (own.incomplete <= frontier && frontier != kNone) return false;
    }
    if (opens.size() < opens_then_.size()) return false;
    for (size_t i = 0; i < opens_then_.size(); ++i)
      if (opens[i].ref != opens_then_[i]) return false;
    return true;
  }
  bool has_stopped_by(int64_t time) const { return last_stop < time; }
  // A record before this instant may undo a step that was recovered: it lies in the hole.
  int64_t reach() const {
    int64_t latest = kNone;
    for (const auto& item : saved.running)
      if (item.kind == 1 && item.step.is_recovered) latest = std::max(latest, item.step.end);
    return latest;
  }
  // After `go_on`: whether a step begins in what is settled, as one that a hole tells of may.
  bool begins_by(int64_t time) {
    const StepRow* next = peek_step();
    return next && next->begin < time;
  }
  // An open step as of now: where it stops follows from the faults and the attempt's end.
  StepRow opened(StepRow s) const {
    s.stretch = facts->stretch(s.begin);
    s.stop = s.end = std::max(s.begin, facts->stop_after(s.begin, facts->end));
    return s;
  }

  // The rank's next piece; false at `facts->cut`. Pieces follow each other without a gap.
  bool next_piece(Piece& out) {
    while (queue_.empty()) {
      if (state.now >= facts->cut) return false;
      next_interval();
    }
    out = queue_.front();
    queue_.pop_front();
    return true;
  }

  // Where the interval that would come next ends; takes in what has begun by now and nothing else.
  int64_t peek_until() {
    take_begun();
    int64_t until = std::min(facts->cut, next_begin());
    if (!state.running.empty()) until = std::min(until, state.running.front().end);
    return until;
  }
  bool has_queued() const { return !queue_.empty(); }
  void drop_queued() { queue_.clear(); }

  const StepRow* peek_step() {
    const StepRow* ended = peek_ended();
    if (state.open_at == opens.size()) return ended;
    const StepRow* open = &opens[state.open_at];
    return ended && ended->key() <= open->key() ? ended : open;
  }

  StepRow pop_step() {
    const StepRow s = *peek_step();
    s.is_open ? void(++state.open_at) : void(state.has_ahead = false);
    if (!s.is_open) state.ahead_part = SIZE_MAX;
    return s;
  }

  // Steps that begin after the attempt's time still raise the mark.
  void drain() {
    while (const StepRow* s = peek_step()) {
      const StepRow step = *s;
      take_step(step);
      state.running.clear();
    }
  }

 private:
  std::deque<Piece> queue_;
  int64_t last_stop_then_ = kNone, first_step_then_ = kNone;  // when `saved` was
  std::vector<int64_t> opens_then_;
  size_t num_extras_then_ = 0;
  int64_t frontier_ = kNone, frontier_gen_ = 0, frontier_stretch_ = 0;
  bool has_frontier_ = false;

  // R11: a hole in time and cursor that no fault or blocking span explains was one step.
  bool is_hole(const StepRow& last, const StepRow& next) const {
    if (next.c0 <= last.c1 || next.stretch != last.stretch || last.end >= next.begin) return false;
    auto begun = std::partition_point(blocking.begin(), blocking.end(),
                                      [&](size_t i) { return spans[i].begin < next.begin; });
    return begun == blocking.begin() || busy_until[begun - blocking.begin() - 1] <= last.end;
  }

  const StepRow* peek_ended() {
    if (state.has_ahead) return &state.ahead;
    if (state.has_recovered) {
      state.ahead = state.after_hole;
      state.has_recovered = false;
      state.has_ahead = true;
      return &state.ahead;
    }
    const size_t p = next_part(state.at);
    if (p == parts.size()) return nullptr;
    StepRow next = load(parts[p], state.at[p]++);
    state.ahead_part = p, state.prev_before = state.prev, state.has_prev_before = state.has_prev;
    if (state.has_prev && is_hole(state.prev, next)) {
      StepRow hole = next;
      hole.number = next.number - 1, hole.begin = state.prev.end, hole.end = hole.stop = next.begin;
      hole.stretch = state.prev.stretch, hole.c0 = state.prev.c1, hole.c1 = next.c0, hole.is_recovered = true;
      hole.ref = kExtra | static_cast<int64_t>(extras.size());
      extras.push_back(hole);
      extras.back().ref = next.ref;
      state.after_hole = next;
      state.has_recovered = true;
      state.ahead = hole;
    } else {
      state.ahead = next;
    }
    state.prev = next, state.has_prev = true;
    state.has_ahead = true;
    return &state.ahead;
  }

  void take_step(const StepRow& next) {
    RankState::Running item{next.begin, 1, state.num_steps++, next.stop, next, 0};
    next.is_open ? void(++state.open_at) : void(state.has_ahead = false);
    if (!next.is_open) state.ahead_part = SIZE_MAX;
    const StepRow& s = item.step;
    if (state.first_begin == kNone) state.first_begin = s.begin;
    state.last_begin = s.begin, state.last_ref = s.ref;
    const bool complete = is_complete(s), doubted = complete && facts->is_unknown(s.begin);
    item.high = state.high;
    if (!s.is_open) state.note_taken(s, complete);
    if (complete) {
      state.recovered_any |= s.is_recovered;
      state.doubted_any |= doubted;
      if (!doubted && s.c1 != kNone) {
        state.high = std::max(state.high, s.c1);
        if (std::pair{s.end, s.c1} > std::pair{state.best_end, state.best_c1}) state.best_end = s.end, state.best_c1 = s.c1;
      }
    }
    state.running.push_back(item);
    std::push_heap(state.running.begin(), state.running.end());
  }

  int64_t next_begin() {
    int64_t begin = kForever;
    if (state.span_at < blocking.size()) begin = spans[blocking[state.span_at]].begin;
    if (const StepRow* s = peek_step()) begin = std::min(begin, s->begin);
    return begin;
  }

  void take_begun() {
    for (; state.span_at < blocking.size() && spans[blocking[state.span_at]].begin <= state.now; ++state.span_at) {
      const size_t i = blocking[state.span_at];
      state.running.push_back({spans[i].begin, 0, static_cast<int64_t>(i), spans[i].end, {}, i});
      std::push_heap(state.running.begin(), state.running.end());
    }
    while (const StepRow* s = peek_step()) {
      if (s->begin > state.now) break;
      const StepRow step = *s;
      take_step(step);
    }
    while (!state.running.empty() && state.running.front().end <= state.now) {
      std::pop_heap(state.running.begin(), state.running.end());
      state.running.pop_back();
    }
  }

  void next_interval() {
    if (state.now >= limit) save();
    const int64_t begin = state.now, until = peek_until();
    if (until > limit) save();
    if (state.running.empty()) add_uncovered(begin, until);
    else if (state.running.front().kind == 0) add_span(state.running.front().span, begin, until);
    else add_step(state.running.front(), begin, until);
    state.now = until;
  }

  template <typename F>
  void split(int64_t begin, int64_t end, std::array<int64_t, 3> cuts, F add) {
    std::sort(cuts.begin(), cuts.end());
    for (int64_t cut : cuts)
      if (cut != kNone && begin < cut && cut < end) add(begin, cut), begin = cut;
    add(begin, end);
  }
  void push(int64_t begin, int64_t end, int64_t label, int64_t ref) { queue_.push_back({begin, end, label, ref, begin}); }
  bool is_ended(int64_t time) const { return train_end != kNone && time >= train_end; }

  void add_span(size_t index, int64_t begin, int64_t end) {
    const SpanRow& span = spans[index];
    split(begin, end, {train_end, first_step, kNone}, [&](int64_t b, int64_t e) {
      const int64_t component = is_ended(b) ? 6
                                : span.component >= 0 ? span.component
                                : first_step != kNone && b >= first_step ? kWasted : kInit;
      push(b, e, kFirstSpanLabel + span.name * kLabelsOfSpan + component, kSpan | static_cast<int64_t>(index));
    });
  }

  void add_step(const RankState::Running& item, int64_t begin, int64_t end) {
    const StepRow& s = item.step;
    const bool complete = is_complete(s), doubted = complete && facts->is_unknown(s.begin);
    const int64_t new_from = !complete ? kNone : doubted ? s.begin : s.time_at(item.high);
    const int64_t compiled = item.order == 0 ? compiled_until : kNone;
    split(begin, end, {train_end, new_from, compiled}, [&](int64_t b, int64_t e) {
      int64_t label = s.is_recovered ? kNewDataRecovered : kNewData;
      if (is_ended(b)) label = kStepAfterEnd;
      else if (compiled != kNone && b < compiled) label = kInferredCompile;
      else if (!complete) label = kInFlightStep;
      else if (doubted) label = kCursorUnknown;
      else if (b < new_from) label = kReplay;
      push(b, e, label, s.ref);
    });
  }

  void add_uncovered(int64_t begin, int64_t end) {
    auto add = [&](int64_t b, int64_t e) {
      int64_t label = facts->is_clean ? kUntrackedShutdown : kInFlight;
      const auto past = static_cast<size_t>(facts->stretch(b));
      if (is_ended(b)) label = kAfterEnd;
      else if (past > 0 && state.last_begin < facts->faults[past - 1]) label = kInprocessRestart;
      else if (state.last_begin == kNone) label = kUntrackedInit;
      else if (last_stop == kNone || b < last_stop) label = kUntrackedLoop;
      push(b, e, label, state.last_ref);
    };
    auto fault = std::upper_bound(facts->faults.begin(), facts->faults.end(), begin);
    for (; fault != facts->faults.end() && *fault < end; ++fault) {
      split(begin, *fault, {train_end, last_stop, kNone}, add);
      begin = *fault;
    }
    split(begin, end, {train_end, last_stop, kNone}, add);
  }
};

}  // namespace ett
