// One attempt of a log: all ranks' sweeps, merged by the weakest link (rules R7, R8, R15 and section 1 of the schema).
// Finished once it is; of a running attempt what is settled is kept, and only the time after it is swept again.
#pragma once

#include <functional>
#include <queue>
#include <set>

#include "_piece_columns.hpp"

namespace ett {

using Clocks = std::map<std::pair<int64_t, int64_t>, int64_t>;  // (host, boot) -> mono_ns to normalised time

class AttemptSweep {
 public:
  AttemptSweep(LogColumns& log, int64_t att) : log_(log), att_(att) {}

  Facts facts;
  std::vector<std::unique_ptr<RankSweep>> ranks;  // in the order of their first record
  std::vector<StepRow> extras;                    // open and recovered steps
  CursorTable cursors;
  Frontiers frontiers;

  // Returns the attempt's pieces; facts as of now.
  PieceTable run(Facts now, const std::vector<int64_t>& rank_order, const Clocks& clocks,
                 const std::unordered_map<std::string, int>& components) {
    facts = std::move(now);
    build(rank_order, clocks, components);
    PieceTable table;
    table.tail = std::make_shared<PieceColumns>();
    for (auto& rank : ranks) rank->begin(facts.start);
    if (facts.has_time) merge(*table.tail, facts.start, facts.cut, 0);
    for (auto& rank : ranks) rank->drain();
    table.end = facts.cut;
    return table;
  }

  int64_t high() const {
    int64_t high = facts.high;
    for (const auto& rank : ranks) high = std::max(high, rank->state.high);
    return high;
  }
  int64_t last_cursor() const {
    std::pair<int64_t, int64_t> best{kNone, kNone};
    for (const auto& rank : ranks) best = std::max(best, {rank->state.best_end, rank->state.best_c1});
    return best.second;
  }
  bool has_recovered() const {
    return std::any_of(ranks.begin(), ranks.end(), [](const auto& r) { return r->state.recovered_any; });
  }
  bool has_doubted() const {
    return std::any_of(ranks.begin(), ranks.end(), [](const auto& r) { return r->state.doubted_any; });
  }
  RankSweep* of_rank(int64_t rank) {
    auto found = by_rank_.find(rank);
    return found == by_rank_.end() ? nullptr : found->second;
  }
  LogColumns& log() { return log_; }
  RankSweep::Part& part_of(int64_t ref) { return *part_of_stream_.at(stream_of_ref(ref)); }

  // The step that a piece of `rank` refers to.
  StepRow step_of(int64_t ref, int64_t rank) {
    if (ref & kExtra) return extras[ref & ~kExtra];
    size_t hint = 0;
    return of_rank(rank)->load(part_of(ref), row_of_ref(ref), hint);
  }

  // Calls see(rank, step) for all steps by begin and rank, open and recovered ones too, until it returns false.
  template <typename F>
  void each_step(F see) {
    std::vector<RankState> kept;
    const size_t num_extras = extras.size();
    using Next = std::tuple<int64_t, int64_t, size_t>;
    std::priority_queue<Next, std::vector<Next>, std::greater<>> queue;
    auto feed = [&](size_t r) {
      if (const StepRow* s = ranks[r]->peek_step()) queue.emplace(s->begin, ranks[r]->rank, r);
    };
    for (size_t r = 0; r < ranks.size(); ++r) {
      kept.push_back(ranks[r]->state);
      ranks[r]->begin(facts.start);
      feed(r);
    }
    while (!queue.empty()) {
      const size_t r = std::get<2>(queue.top());
      queue.pop();
      if (!see(*ranks[r], ranks[r]->pop_step())) break;
      feed(r);
    }
    for (size_t r = 0; r < ranks.size(); ++r) ranks[r]->state = std::move(kept[r]);
    extras.resize(num_extras);
  }

  int64_t first_begin(int64_t time) {
    int64_t first = kForever;
    for (auto& rank : ranks)
      for (auto& part : rank->parts) {
        const size_t i = first_row(part, time);
        if (i < part.reader.stream->size()) first = std::min(first, part.reader.b(i) + part.clock);
      }
    for (const StepRow& s : extras)
      if (s.begin >= time) first = std::min(first, s.begin);
    return first;
  }

  // Raise each of `best` to the stop of the latest complete step that stopped by its time.
  void each_complete_stop(const std::vector<int64_t>& times, std::vector<int64_t>& best) {
    auto see = [&](RankSweep& rank, const StepRow& s) {
      if (!rank.is_complete(s)) return;
      for (size_t i = 0; i < times.size(); ++i)
        if (s.stop <= times[i]) best[i] = std::max(best[i], s.stop);
    };
    for (auto& rank : ranks)
      for (auto& part : rank->parts) {
        size_t hint = 0;
        if (part.reader.stream->overlaps) {
          for (size_t i = 0; i < part.reader.stream->size(); ++i) see(*rank, rank->load(part, i, hint, false));
          continue;
        }
        for (size_t i = 0; i < times.size(); ++i)
          for (size_t row = times[i] == kForever ? part.reader.stream->size() : first_row(part, times[i] + 1); row-- > 0;) {
            const StepRow s = rank->load(part, row, hint, false);
            if (s.stop > times[i] || !rank->is_complete(s)) continue;
            best[i] = std::max(best[i], s.stop);
            break;
          }
      }
    for (auto& rank : ranks)
      for (const StepRow& s : extras)
        if (s.is_recovered && rank->parts.size() && part_of_stream_.at(stream_of_ref(s.ref)) >= rank->parts.data() &&
            part_of_stream_.at(stream_of_ref(s.ref)) < rank->parts.data() + rank->parts.size())
          see(*rank, s);
  }

  std::vector<std::tuple<int64_t, int64_t, int64_t>> world_changes() {
    std::vector<std::tuple<int64_t, int64_t, int64_t>> found;
    std::set<int64_t> sizes;
    for (auto& rank : ranks)
      for (auto& part : rank->parts) sizes.insert(world_of(*part.reader.stream));
    if (sizes.empty() || sizes == std::set<int64_t>{kNone}) return found;
    each_step([&](RankSweep&, const StepRow& s) {
      if (s.is_open) return true;
      const int64_t ref = s.ref & kExtra ? extras[s.ref & ~kExtra].ref : s.ref;
      const int64_t world = world_of(*log_.streams[stream_of_ref(ref)]);
      if (world != kNone && (found.empty() || std::get<1>(found.back()) != world)) found.emplace_back(s.begin, world, ref);
      return found.empty() || sizes.size() > 1;
    });
    return found;
  }

 private:
  static int64_t world_of(const Stream& s) { return s.has(kWorld) ? s.key[kWorld] : kNone; }

  static size_t first_row(RankSweep::Part& part, int64_t begin) {
    size_t low = 0, high = part.reader.stream->size();
    while (low < high) {
      const size_t middle = (low + high) / 2;
      part.reader.b(middle) + part.clock < begin ? low = middle + 1 : high = middle;
    }
    return low;
  }

  LogColumns& log_;
  int64_t att_;
  std::map<int64_t, RankSweep*> by_rank_;
  std::map<size_t, RankSweep::Part*> part_of_stream_;

  void build(const std::vector<int64_t>& rank_order, const Clocks& clocks,
             const std::unordered_map<std::string, int>& components) {
    ranks.clear(), by_rank_.clear(), part_of_stream_.clear(), extras.clear();
    for (int64_t number : rank_order) {
      ranks.push_back(std::make_unique<RankSweep>());
      RankSweep& rank = *ranks.back();
      rank.rank = number, rank.facts = &facts, rank.frontiers = &frontiers, rank.extras = &extras;
      by_rank_[number] = &rank;
    }
    std::map<int64_t, std::vector<size_t>> span_streams, begin_streams;
    bool needs_cursors = false;
    for (size_t i = 0; i < log_.streams.size(); ++i) {
      Stream& s = *log_.streams[i];
      auto found = by_rank_.find(s.rank);
      if (s.att() != att_ || s.is_supervisors || found == by_rank_.end()) continue;
      if (!s.is_sorted) log_.sort(s);
      if (s.kind == 0) {
        found->second->parts.push_back({i, clock_of(s, clocks), StreamReader(&s)});
        needs_cursors |= !s.has_cursor();
      }
      if (s.kind == 2 || s.kind == 3) span_streams[s.rank].push_back(i);
      if (s.kind == 4) begin_streams[s.rank].push_back(i);
    }
    for (auto& rank : ranks) {
      for (auto& part : rank->parts) part_of_stream_[part.stream] = &part;
      build_spans(*rank, span_streams[rank->rank], clocks, components);
      look_ahead(*rank, begin_streams[rank->rank], clocks);
    }
    find_frontiers();
    cursors = CursorTable{};
    if (needs_cursors) fill_cursors();
    int64_t first = kForever;
    for (auto& rank : ranks)
      if (rank->first_step != kNone) first = std::min(first, rank->first_step);
    for (auto& rank : ranks) {
      rank->cursors = needs_cursors ? &cursors : nullptr;
      if (rank->first_step == kNone && first != kForever) rank->first_step = first;
      auto end = facts.train_ends.find(rank->rank);
      rank->train_end = end == facts.train_ends.end() ? kNone : end->second;
      rank->forget_frontier();
      if (facts.infer_compile) infer_compile(*rank);
    }
    for (auto& world : facts.worlds)
      for (auto& [key, writers] : writers_)
        if (key == world.gen) world.steppers.assign(writers.begin(), writers.end());
  }

  int64_t clock_of(const Stream& s, const Clocks& clocks) const { return clocks.at({s.text(kHost), s.text(kBoot)}); }

  void build_spans(RankSweep& rank, const std::vector<size_t>& streams, const Clocks& clocks,
                   const std::unordered_map<std::string, int>& components) {
    struct Mark {
      int64_t time, seq;
      size_t stream, row;
      int64_t id, parent;
    };
    std::vector<Mark> marks;
    for (size_t i : streams) {
      const Stream& s = *log_.streams[i];
      StreamReader reader(&s);
      const int64_t clock = clock_of(s, clocks);
      for (size_t row = 0; row < s.size(); ++row)
        marks.push_back({reader.mono(row) + clock, reader.raw(kSeq, row), i, row, reader.raw(kId, row),
                         s.has(kParent) ? reader.raw(kParent, row) : kNone});
    }
    auto text = [&](const Stream& s, size_t c) { return s.has(c) ? std::string_view(log_.texts[s.key[c]]) : ""; };
    std::sort(marks.begin(), marks.end(), [&](const Mark& a, const Mark& b) {
      if (a.time != b.time) return a.time < b.time;
      const Stream &p = *log_.streams[a.stream], &q = *log_.streams[b.stream];
      const auto left = std::tuple(text(p, kSrc), a.seq, text(p, kHost), text(p, kBoot), p.key[kPid], text(p, kEv));
      return left < std::tuple(text(q, kSrc), b.seq, text(q, kHost), text(q, kBoot), q.key[kPid], text(q, kEv));
    });
    using Key = std::array<int64_t, 5>;
    std::map<Key, std::pair<int64_t, Key>> begins;  // name, parent
    std::map<Key, size_t> running;
    const Key nobody{kNone};
    for (const Mark& mark : marks) {
      const Stream& s = *log_.streams[mark.stream];
      const Key writer{s.text(kHost), s.text(kBoot), s.key[kPid], s.text(kSrc), mark.id};
      if (s.kind == 2) {
        Key parent = writer;
        parent[4] = mark.parent;
        begins[writer] = {s.key[kName], mark.parent == kNone ? nobody : parent};
        SpanRow span;
        span.begin = mark.time, span.name = s.key[kName], span.rank = rank.rank;
        span.end = std::max(mark.time, facts.stop_after(mark.time, facts.end));
        span.is_blocking = !s.has(kBlocking) || StreamReader(&s).raw(kBlocking, mark.row) == 1;
        span.ref = row_ref(mark.stream, mark.row);
        std::set<Key> seen;
        for (Key at = writer; seen.insert(at).second;) {
          auto found = begins.find(at);
          if (found == begins.end()) break;
          auto known = components.find(log_.texts[found->second.first]);
          if (known != components.end()) {
            span.component = known->second;
            break;
          }
          at = found->second.second;
        }
        running[writer] = rank.spans.size();
        rank.spans.push_back(span);
      } else if (auto found = running.find(writer); found != running.end()) {
        SpanRow& span = rank.spans[found->second];
        span.was_closed = mark.time <= span.end;
        span.end = std::min(span.end, std::max(mark.time, span.begin));
        running.erase(found);
      }
    }
    int64_t busy = kNone;
    for (size_t i = 0; i < rank.spans.size(); ++i)
      if (rank.spans[i].is_blocking) {
        rank.blocking.push_back(i);
        rank.busy_until.push_back(busy = std::max(busy, rank.spans[i].end));
      }
  }

  // What the sweep must know beforehand: how far each stretch got, where the rank's last step stopped, which stay open.
  void look_ahead(RankSweep& rank, const std::vector<size_t>& begin_streams, const Clocks& clocks) {
    struct Begun {
      StepRow step;
      int64_t least_stop = kForever, order;
      std::array<int64_t, 2> written;
    };
    std::vector<Begun> begun;
    for (size_t i : begin_streams) {
      const Stream& s = *log_.streams[i];
      StreamReader reader(&s);
      const int64_t clock = clock_of(s, clocks);
      for (size_t row = 0; row < s.size(); ++row) {
        StepRow step;
        step.begin = (s.has(kBMono) ? reader.raw(kBMono, row) : reader.mono(row)) + clock;
        step.number = s.has(kStep) ? reader.raw(kStep, row) : kForever;
        step.gen = s.gen(), step.is_open = true, step.ref = row_ref(i, row);
        begun.push_back({step, kForever, 0, {reader.mono(row) + clock, reader.raw(kSeq, row)}});
      }
    }
    std::sort(begun.begin(), begun.end(), [](const Begun& a, const Begun& b) {
      return std::tuple(a.step.begin, a.written) < std::tuple(b.step.begin, b.written);
    });
    int64_t last_stop = kNone;
    size_t first = 0, until = 0;  // of those that may still be ended by an earlier stop than the ones seen
    std::vector<size_t> at(rank.parts.size(), 0);
    size_t hint = 0;
    for (size_t p; (p = rank.next_part(at)) < rank.parts.size();) {
      const StepRow s = rank.load(rank.parts[p], at[p]++, hint, false);
      if (rank.first_step == kNone) rank.first_step = s.begin;
      last_stop = std::max(last_stop, s.stop);
      if (last_gen_ != s.gen || last_stretch_ != s.stretch || !last_number_ || last_rank_ != &rank) {
        auto [found, is_new] = rank.ended_up_to.try_emplace({s.gen, s.stretch}, s.number);
        last_gen_ = s.gen, last_stretch_ = s.stretch, last_number_ = &found->second, last_rank_ = &rank;
      }
      *last_number_ = std::max(*last_number_, s.number);
      while (until < begun.size() && begun[until].step.begin < s.stop) ++until;
      while (first < until && begun[first].least_stop <= s.begin) ++first;
      for (size_t j = first; j < until; ++j)
        if (begun[j].step.begin < s.stop) begun[j].least_stop = std::min(begun[j].least_stop, s.stop);
    }
    last_number_ = nullptr;
    for (Begun& b : begun) {
      const int64_t limit = facts.stop_after(b.step.begin, std::max(facts.end, last_stop));
      if (b.least_stop != kForever && b.least_stop <= limit) continue;
      b.step.stretch = facts.stretch(b.step.begin);
      b.step.stop = b.step.end = std::max(b.step.begin, facts.stop_after(b.step.begin, facts.end));
      rank.opens.push_back(b.step);
    }
    std::stable_sort(rank.opens.begin(), rank.opens.end(),
                     [](const StepRow& a, const StepRow& b) { return a.key() < b.key(); });
    for (StepRow& open : rank.opens) {
      extras.push_back(open);
      open.ref = kExtra | static_cast<int64_t>(extras.size() - 1);
      last_stop = std::max(last_stop, open.stop);
      rank.first_step = rank.first_step == kNone ? open.begin : std::min(rank.first_step, open.begin);
    }
    rank.last_stop = last_stop;
  }
  int64_t last_gen_ = 0, last_stretch_ = 0;
  int64_t* last_number_ = nullptr;
  const RankSweep* last_rank_ = nullptr;

  std::map<int64_t, std::set<int64_t>> writers_;  // generation -> ranks that wrote steps in it

  void find_frontiers() {
    writers_.clear();
    std::set<std::pair<int64_t, int64_t>> places;
    for (auto& rank : ranks) {
      for (const auto& [place, number] : rank->ended_up_to) writers_[place.first].insert(rank->rank), places.insert(place);
      for (const auto& open : rank->opens) writers_[open.gen].insert(rank->rank);
    }
    frontiers.numbers.clear();
    for (const auto& place : places) {
      int64_t least = kForever;
      for (int64_t writer : writers_[place.first]) {
        const auto& own = by_rank_[writer]->ended_up_to;
        auto found = own.find(place);
        least = found == own.end() ? kNone : std::min(least, found->second);
        if (least == kNone) break;
      }
      frontiers.numbers[place] = least;
    }
  }

  static int64_t sum(int64_t a, int64_t b) {
    int64_t out;
    if (__builtin_add_overflow(a, b, &out) || out > kLimit || out < -kLimit) throw std::overflow_error("cursor");
    return out;
  }

  // Sums over ranks by step number, from each restore on; what a fault left behind goes on below the first number seen.
  void fill_cursors() {
    struct Run {
      size_t rank;
      std::vector<size_t> at;
      size_t left;
    };
    std::map<int64_t, std::vector<Run>> by_stretch;
    std::map<int64_t, bool> ascends;
    size_t hint = 0;
    for (size_t r = 0; r < ranks.size(); ++r) {
      std::vector<size_t> at(ranks[r]->parts.size(), 0);
      int64_t last = 0;
      for (size_t p; (p = ranks[r]->next_part(at)) < ranks[r]->parts.size();) {
        const StepRow s = ranks[r]->load(ranks[r]->parts[p], at[p], hint, false);
        auto& runs = by_stretch[s.stretch];
        if (runs.empty() || runs.back().rank != r) {
          runs.push_back({r, at, 0});
          ascends.try_emplace(s.stretch, true);
        } else if (s.number <= last) {
          ascends[s.stretch] = false;
        }
        ++runs.back().left;
        last = s.number;
        ++at[p];
      }
    }
    struct Sample {
      int64_t number, rank, c0, c1, samples;
      bool is_known;
    };
    auto next = [&](Run& run) {
      RankSweep& rank = *ranks[run.rank];
      const size_t p = rank.next_part(run.at), row = run.at[p]++;
      auto& reader = rank.parts[p].reader;
      --run.left;
      Sample sample{reader.number(row), static_cast<int64_t>(run.rank), 0, 0, 0, reader.stream->has_cursor()};
      if (sample.is_known) sample.c0 = reader.c0(row), sample.c1 = reader.c1(row);
      else sample.samples = reader.raw(kSamples, row);
      return sample;
    };
    std::set<int64_t> order;
    for (const auto& [stretch, runs] : by_stretch) order.insert(stretch);
    for (const auto& [stretch, cursor] : facts.restores) order.insert(stretch);
    int64_t start = 0;
    std::vector<int64_t> epoch;  // stretches since the last restore
    for (int64_t stretch : order) {
      auto restored = facts.restores.find(stretch);
      if (restored != facts.restores.end()) start = restored->second, epoch.clear();
      auto found = by_stretch.find(stretch);
      if (found == by_stretch.end()) continue;
      auto& table = cursors.stretches[stretch];
      int64_t cursor = kNone;
      auto add = [&](int64_t number, bool is_known, int64_t c0, int64_t c1, int64_t samples) {
        if (cursor == kNone) cursor = end_below(epoch, number, start);
        if (!is_known) c0 = cursor, c1 = sum(cursor, samples);
        table.numbers.push(number), table.c0.push(c0), table.c1.push(c1);
        cursor = c1;
      };
      if (ascends[stretch]) {
        using Entry = std::pair<std::pair<int64_t, size_t>, Sample>;
        auto later = [](const Entry& a, const Entry& b) { return a.first > b.first; };
        std::priority_queue<Entry, std::vector<Entry>, decltype(later)> queue(later);
        auto feed = [&](size_t r) {
          if (!found->second[r].left) return;
          const Sample sample = next(found->second[r]);
          queue.push({{sample.number, r}, sample});
        };
        for (size_t r = 0; r < found->second.size(); ++r) feed(r);
        while (!queue.empty()) {
          const int64_t number = queue.top().first.first;
          Sample all{number, 0, 0, 0, 0, false};
          while (!queue.empty() && queue.top().first.first == number) {
            const auto [key, sample] = queue.top();
            queue.pop();
            if (sample.is_known) all.is_known = true, all.c0 = sample.c0, all.c1 = sample.c1;
            else all.samples = sum(all.samples, sample.samples);
            feed(key.second);
          }
          add(number, all.is_known, all.c0, all.c1, all.samples);
        }
      } else {
        struct Entry {
          std::map<int64_t, int64_t> samples;
          bool is_known = false;
          int64_t c0 = 0, c1 = 0;
        };
        std::map<int64_t, Entry> entries;
        for (Run& run : found->second)
          while (run.left) {
            const Sample sample = next(run);
            Entry& entry = entries[sample.number];
            if (sample.is_known) entry.is_known = true, entry.c0 = sample.c0, entry.c1 = sample.c1;
            else entry.samples[sample.rank] = sample.samples;
          }
        for (const auto& [number, entry] : entries) {
          int64_t samples = 0;
          for (const auto& [rank, count] : entry.samples) samples = sum(samples, count);
          add(number, entry.is_known, entry.c0, entry.c1, samples);
        }
      }
      epoch.push_back(stretch);
    }
  }

  // Where the cursor stood after the last step below `number` that a later stretch did not repeat.
  int64_t end_below(const std::vector<int64_t>& epoch, int64_t number, int64_t start) const {
    for (size_t i = epoch.size(); i-- > 0;) {
      const auto& table = cursors.stretches.at(epoch[i]);
      size_t low = 0, high = table.numbers.size();
      while (low < high) {
        const size_t middle = (low + high) / 2;
        table.numbers[middle] < number ? low = middle + 1 : high = middle;
      }
      if (low) return table.c1[low - 1];
      number = std::min(number, table.first());
    }
    return start;
  }

  void infer_compile(RankSweep& rank) {
    std::vector<int64_t> later;
    std::optional<StepRow> first;
    rank.begin(facts.start);
    while (rank.peek_step()) {
      const StepRow s = rank.pop_step();
      if (!first) first = s;
      else if (rank.is_complete(s) && !s.is_recovered) later.push_back(s.end - s.begin);
    }
    if (!first || !rank.is_complete(*first) || first->is_recovered || later.size() < 3) return;
    std::sort(later.begin(), later.end());
    const int64_t median = (later[(later.size() - 1) / 2] + later[later.size() / 2]) / 2;
    rank.compiled_until = first->begin + std::max<int64_t>(0, first->end - first->begin - median);
  }

  // R15: the pieces of all ranks from `begin` to `end` as one; `begin` lies where the ranks' sweeps stand or after.
  void merge(PieceColumns& out, int64_t begin, int64_t end, size_t world_at) {
    Piece piece{};
    if (ranks.size() == 1) {
      while (ranks[0]->next_piece(piece))
        if (piece.end > begin) out.add(std::max(piece.begin, begin), piece, ranks[0]->rank, 0);
      return;
    }
    std::vector<Piece> current(ranks.size(), Piece{0, kNone, 0, -1, 0});
    for (size_t w = world_at; w < facts.worlds.size(); ++w) {
      const World& world = facts.worlds[w];
      if (world.end <= begin) continue;
      if (world.begin >= end) break;
      merge_world(out, world, std::max(begin, world.begin), std::min(end, world.end), current, static_cast<int64_t>(w));
    }
  }

  void merge_world(PieceColumns& out, const World& world, int64_t now, int64_t until, std::vector<Piece>& current,
                   int64_t world_number) {
    using Change = std::pair<int64_t, size_t>;                    // when the rank's piece ends
    using Counting = std::tuple<int, int64_t, size_t, int64_t>;   // weakness, rank, its place, begin of its piece
    std::priority_queue<Change, std::vector<Change>, std::greater<>> changes;
    std::priority_queue<Counting, std::vector<Counting>, std::greater<>> counting;
    std::vector<bool> is_silent(ranks.size());
    auto enter = [&](size_t r) {
      while (current[r].end <= now)
        if (!ranks[r]->next_piece(current[r])) return;
      changes.emplace(current[r].end, r);
      if (!is_silent[r] || is_covered(current[r].label))
        counting.emplace(weakness(current[r].label), ranks[r]->rank, r, current[r].begin);
    };
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (!std::binary_search(world.ranks.begin(), world.ranks.end(), ranks[r]->rank)) continue;
      is_silent[r] = !world.steppers.empty() &&
                     !std::binary_search(world.steppers.begin(), world.steppers.end(), ranks[r]->rank);
      enter(r);
    }
    while (now < until) {
      while (!counting.empty()) {
        const auto& [weak, rank, r, piece_begin] = counting.top();
        if (current[r].begin == piece_begin && current[r].end > now) break;
        counting.pop();
      }
      if (counting.empty() && changes.empty()) break;
      if (!counting.empty()) {
        const size_t r = std::get<2>(counting.top());
        out.add(now, current[r], ranks[r]->rank, world_number);
      }
      if (changes.empty() || changes.top().first >= until) break;  // the pieces at the edge go on in the next world
      now = changes.top().first;
      while (!changes.empty() && changes.top().first <= now) {
        const size_t r = changes.top().second;
        changes.pop();
        enter(r);
      }
    }
  }

  static bool is_covered(int64_t label) {
    return label >= kFirstSpanLabel || label <= kStepAfterEnd;
  }
};

}  // namespace ett
