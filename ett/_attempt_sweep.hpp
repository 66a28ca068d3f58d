// One attempt of a log: all ranks' sweeps, merged by the weakest link (rules R7, R8, R15 and section 1 of the schema).
// Finished once it is; of a running attempt what is settled is kept, and only the time after it is swept again.
#pragma once

#include <functional>
#include <queue>
#include <set>
#include <utility>

#include "_rank_book.hpp"
#include "_rank_merge.hpp"

namespace ett {

// How much at once: threads, from how many records on they are worth it, and pieces of one rank.
struct Effort {
  size_t num_threads = 1, threads_from = 0, block = 16;
};

class AttemptSweep {
 public:
  AttemptSweep(LogColumns& log, int64_t att) : log_(log), att_(att) {}

  Facts facts;
  std::vector<std::unique_ptr<RankSweep>> ranks;  // in the order of their first record
  CursorTable cursors;
  Frontiers frontiers;

  // Returns the attempt's pieces, facts as of now. With `settle_ns` the pieces that end that long before the last step
  // of the slowest rank are kept, and the next run goes on after them unless something touched them.
  PieceTable run(Facts now, const std::vector<int64_t>& rank_order, const Clocks& clocks,
                 const std::unordered_map<std::string, int>& components, int64_t settle_ns, const Effort& effort) {
    const bool is_same = settle_ns != kNone && !now.infer_compile && clocks == clocks_ && rank_order == rank_order_ &&
                         now.start == facts.start && now.high == facts.high && attach() && are_sorted();
    const Facts before = std::exchange(facts, std::move(now));
    const auto writers_before = writers_;
    if (!is_same) {
      clocks_ = clocks, rank_order_ = rank_order, components_ = components;
      rebuild();
    }
    const bool faults_changed = before.faults != facts.faults;
    int64_t touched = kForever;
    size_t num_unread = 0;
    for (auto& rank : ranks) num_unread += rank_books_[rank->rank].num_unread(*rank);
    ThreadTeam team(num_unread < effort.threads_from || ranks.size() == 1 ? 1 : effort.num_threads);
    block_ = effort.block;
    if (is_same)
      for (auto& rank : ranks) touched = std::min(touched, rank_books_[rank->rank].touched(log_, *rank, clocks_));
    team.each(ranks.size(), [&](size_t r) {
      if (!is_same || faults_changed || !read(*ranks[r])) reread(*ranks[r]);
      finish(*ranks[r]);
    });
    find_frontiers();
    resolve();
    const bool goes_on = is_same && settled_until_ != kNone && touched >= settled_until_ && facts.cut >= settled_until_ &&
                         !needs_cursors_ && is_same_until(before, writers_before, settled_until_) &&
                         is_as_settled(before, touched) && go_on();
    if (!goes_on) start_over();
    const int64_t until = settle_ns == kNone ? kNone : settle_point() - settle_ns;
    if (facts.has_time && until > settled_until_) {
      for (auto& rank : ranks) rank->save_at(until);
      merge(*settled_, settled_until_, until, team);
      for (auto& rank : ranks) rank->save();
      settled_until_ = until;
      if (!go_on()) start_over();
    }
    PieceTable table;
    table.settled = settled_, table.num_settled = settled_->size();
    table.tail = std::make_shared<PieceColumns>();
    if (settled_->size()) table.tail->go_on_after(settled_->last());
    if (facts.has_time) merge(*table.tail, settled_until_, facts.cut, team);
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
  bool has_inferred_samples() const {
    return std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) {
      return std::any_of(rank->parts.begin(), rank->parts.end(),
                         [](const auto& part) { return part.reader.stream->key[kSamplesInferred] == 1; });
    });
  }
  RankSweep* of_rank(int64_t rank) {
    auto found = by_rank_.find(rank);
    return found == by_rank_.end() ? nullptr : found->second;
  }
  LogColumns& log() { return log_; }
  RankSweep::Part& part_of(int64_t ref) { return *part_of_stream_.at(stream_of_ref(ref)); }

  // The step that a piece of `rank` refers to.
  StepRow step_of(int64_t ref, int64_t rank) {
    RankSweep& own = *of_rank(rank);
    if (ref & kExtra) return own.extras[ref & ~kExtra];
    if (ref & kOpen)
      for (const StepRow& open : own.opens)
        if (open.ref == ref) return open;
    return own.load(part_of(ref), row_of_ref(ref));
  }

  // Calls see(rank, step) for all steps by begin and rank, open and recovered ones too, until it returns false.
  template <typename F>
  void each_step(F see) {
    std::vector<std::pair<RankState, size_t>> kept;  // and how many extras there were
    using Next = std::tuple<int64_t, int64_t, size_t>;
    std::priority_queue<Next, std::vector<Next>, std::greater<>> queue;
    auto feed = [&](size_t r) {
      if (const StepRow* s = ranks[r]->peek_step()) queue.emplace(s->begin, ranks[r]->rank, r);
    };
    for (size_t r = 0; r < ranks.size(); ++r) {
      kept.emplace_back(ranks[r]->state, ranks[r]->extras.size());
      ranks[r]->begin(facts.start);
      feed(r);
    }
    while (!queue.empty()) {
      const size_t r = std::get<2>(queue.top());
      queue.pop();
      if (!see(*ranks[r], ranks[r]->pop_step())) break;
      feed(r);
    }
    for (size_t r = 0; r < ranks.size(); ++r)
      ranks[r]->state = std::move(kept[r].first), ranks[r]->extras.resize(kept[r].second);
  }

  int64_t first_begin(int64_t time) {
    int64_t first = kForever;
    for (auto& rank : ranks)
      for (auto& part : rank->parts) {
        const size_t i = first_row(part, time);
        if (i < part.reader.stream->size()) first = std::min(first, part.reader.b(i) + part.clock);
      }
    for (auto& rank : ranks)
      for (const auto* steps : {&rank->extras, &rank->opens})
        for (const StepRow& s : *steps)
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
        if (part.reader.stream->overlaps) {
          for (size_t i = 0; i < part.reader.stream->size(); ++i) see(*rank, rank->load(part, i, false));
          continue;
        }
        for (size_t i = 0; i < times.size(); ++i)
          for (size_t row = times[i] == kForever ? part.reader.stream->size() : first_row(part, times[i] + 1); row-- > 0;) {
            const StepRow s = rank->load(part, row, false);
            if (s.stop > times[i] || !rank->is_complete(s)) continue;
            best[i] = std::max(best[i], s.stop);
            break;
          }
      }
    for (auto& rank : ranks)
      for (const StepRow& s : rank->extras) see(*rank, s);
  }

  std::vector<std::tuple<int64_t, int64_t, int64_t>> world_changes() {
    std::vector<std::tuple<int64_t, int64_t, int64_t>> found;
    std::set<int64_t> sizes;
    for (auto& rank : ranks)
      for (auto& part : rank->parts) sizes.insert(world_of(*part.reader.stream));
    if (sizes.empty() || sizes == std::set<int64_t>{kNone}) return found;
    each_step([&](RankSweep& rank, const StepRow& s) {
      if (s.is_open) return true;
      const int64_t ref = s.ref & kExtra ? rank.extras[s.ref & ~kExtra].ref : s.ref;
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
  std::map<int64_t, RankBook> rank_books_;
  std::map<size_t, RankSweep::Part*> part_of_stream_;
  std::vector<size_t> attached_;
  size_t num_streams_ = 0;
  Clocks clocks_;
  std::vector<int64_t> rank_order_;
  std::unordered_map<std::string, int> components_;
  bool needs_cursors_ = false;
  size_t block_ = 16;
  std::shared_ptr<PieceColumns> settled_;
  int64_t settled_until_ = kNone;

  void rebuild() {
    ranks.clear(), by_rank_.clear(), rank_books_.clear(), part_of_stream_.clear(), attached_.clear();
    num_streams_ = 0, needs_cursors_ = false, settled_until_ = kNone;
    for (int64_t number : rank_order_) {
      ranks.push_back(std::make_unique<RankSweep>());
      RankSweep& rank = *ranks.back();
      rank.rank = number, rank.facts = &facts, rank.frontiers = &frontiers;
      by_rank_[number] = &rank, rank_books_[number];
    }
    attach();
  }

  // Take in the streams that are new; false where one is of a rank or a clock that is not known yet.
  bool attach() {
    for (; num_streams_ < log_.streams.size(); ++num_streams_) {
      Stream& s = *log_.streams[num_streams_];
      auto found = by_rank_.find(s.rank);
      if (s.att() != att_ || s.is_supervisors || s.rank == kNoRank) continue;
      auto clock = clocks_.find({s.text(kHost), s.text(kBoot)});
      if (found == by_rank_.end() || clock == clocks_.end()) return false;
      if (!s.is_sorted) log_.sort(s);
      attached_.push_back(num_streams_);
      RankSweep& rank = *found->second;
      RankBook& book = rank_books_[s.rank];
      if (s.kind == 0) {
        rank.parts.push_back({num_streams_, clock->second, StreamReader(&s)});
        for (auto& part : rank.parts) part_of_stream_[part.stream] = &part;
        book.seen.push_back(0);
        needs_cursors_ |= !s.has_cursor();
      }
      if (s.kind >= 2) book.add_stream(num_streams_, s.kind);
    }
    return true;
  }

  bool are_sorted() const {
    return std::all_of(attached_.begin(), attached_.end(), [&](size_t i) { return log_.streams[i]->is_sorted; });
  }

  bool read(RankSweep& rank) {
    RankBook& book = rank_books_[rank.rank];
    return book.read_spans(log_, rank, clocks_, components_) && book.look_ahead(log_, rank, clocks_);
  }

  // Records that came late for their rank, or a fault among them: what is known of the rank beforehand is found again.
  void reread(RankSweep& rank) {
    RankBook& book = rank_books_[rank.rank];
    book.forget(rank);
    read(rank);
  }

  void finish(RankSweep& rank) { rank_books_[rank.rank].finish(rank); }

  // What follows from all ranks together.
  void resolve() {
    cursors = CursorTable{};
    if (needs_cursors_) fill_cursors();
    int64_t first = kForever;
    for (auto& rank : ranks)
      if (rank->first_own_step != kNone) first = std::min(first, rank->first_own_step);
    for (auto& rank : ranks) {
      rank->cursors = CursorReader(needs_cursors_ ? &cursors : nullptr);
      rank->first_step = rank->first_own_step != kNone ? rank->first_own_step : first == kForever ? kNone : first;
      auto end = facts.train_ends.find(rank->rank);
      rank->train_end = end == facts.train_ends.end() ? kNone : end->second;
      rank->forget_frontier();
      if (facts.infer_compile) infer_compile(*rank);
    }
    for (auto& world : facts.worlds) {
      auto found = writers_.find(world.gen);
      if (found != writers_.end()) world.steppers.assign(found->second.begin(), found->second.end());
    }
  }

  void start_over() {
    settled_ = std::make_shared<PieceColumns>();
    settled_until_ = facts.start;
    for (auto& rank : ranks) rank->begin(facts.start), rank->extras.clear(), rank->has_saved = false;
  }

  bool go_on() {
    return std::all_of(ranks.begin(), ranks.end(), [&](auto& rank) {
      return rank->has_saved && rank->go_on() && !rank->begins_by(settled_until_);
    });
  }

  // Whether each rank's settled time has the labels that it would get now.
  bool is_as_settled(const Facts& before, int64_t touched) const {
    return std::all_of(ranks.begin(), ranks.end(), [&](const auto& rank) {
      if (before.is_clean != facts.is_clean && rank->has_stopped_by(settled_until_)) return false;
      return rank->is_as_saved(settled_until_) && touched >= rank->reach();
    });
  }

  // Whether nothing that decides the time before `until` has changed.
  bool is_same_until(const Facts& before, const std::map<int64_t, std::set<int64_t>>& writers, int64_t until) const {
    auto early = [&](const std::vector<int64_t>& times) {
      return std::vector<int64_t>(times.begin(), std::lower_bound(times.begin(), times.end(), until));
    };
    auto early_unknown = [&](const Facts& of) {
      auto found = of.unknown;
      for (auto& [begin, end] : found) begin = std::min(begin, until), end = std::min(end, until);
      found.erase(std::remove_if(found.begin(), found.end(), [](const auto& i) { return i.first >= i.second; }), found.end());
      return found;
    };
    auto early_worlds = [&](const Facts& of) {
      std::vector<std::tuple<int64_t, int64_t, int64_t, std::vector<int64_t>>> found;
      for (const World& w : of.worlds)
        if (w.begin < until) found.emplace_back(w.begin, std::min(w.end, until), w.gen, w.ranks);
      return found;
    };
    auto ends_early = [&](const Facts& of) {
      return std::any_of(of.train_ends.begin(), of.train_ends.end(), [&](const auto& end) { return end.second < until; });
    };
    for (const World& w : facts.worlds) {
      if (w.begin >= until) continue;
      auto was = writers.find(w.gen), is = writers_.find(w.gen);
      if ((was == writers.end()) != (is == writers_.end()) || (was != writers.end() && was->second != is->second)) return false;
    }
    return early(before.faults) == early(facts.faults) && early_unknown(before) == early_unknown(facts) &&
           early_worlds(before) == early_worlds(facts) && !ends_early(before) && !ends_early(facts) && facts.has_time;
  }

  // Up to where the records that come in order change nothing: no rank may yet end or begin a step before it.
  int64_t settle_point() {
    if (!facts.has_time || facts.infer_compile || needs_cursors_ || facts.worlds.empty()) return kNone / 2;
    int64_t point = facts.cut;
    for (const auto& [rank, time] : facts.train_ends) point = std::min(point, time);
    const int64_t gen = facts.worlds.back().gen;
    if (writers_[gen].empty()) return kNone / 2;
    const auto last_stretch = static_cast<int64_t>(facts.faults.size());
    for (int64_t writer : writers_[gen]) {
      RankSweep& rank = *by_rank_[writer];
      if (rank_books_[writer].last_end == kNone) return kNone / 2;
      point = std::min(point, rank_books_[writer].last_end);
      for (const StepRow& open : rank.opens)
        if (open.stretch == last_stretch) point = std::min(point, open.begin);
      for (auto& part : rank.parts) {
        if (part.reader.stream->gen() != gen) continue;
        for (size_t row = part.reader.stream->size(); row-- > 0;) {
          const StepRow s = rank.load(part, row, false);
          const bool is_done = s.stretch < last_stretch || rank.is_complete(s);
          point = std::min(point, is_done ? s.end : s.begin);
          if (is_done) break;
        }
      }
    }
    return point;
  }

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
    for (size_t r = 0; r < ranks.size(); ++r) {
      std::vector<size_t> at(ranks[r]->parts.size(), 0);
      int64_t last = 0;
      for (size_t p; (p = ranks[r]->next_part(at)) < ranks[r]->parts.size();) {
        const StepRow s = ranks[r]->load(ranks[r]->parts[p], at[p], false);
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

  // The pieces of all ranks from `begin` to `end` as one; `begin` lies where the ranks' sweeps stand or after.
  void merge(PieceColumns& out, int64_t begin, int64_t end, ThreadTeam& team) {
    if (ranks.size() > 1) return RankMerge(ranks, facts, team, block_).run(out, begin, end);
    Piece piece{};
    while (begin < end && ranks[0]->next_piece(piece)) {
      if (piece.end <= begin) continue;
      out.add(std::max(piece.begin, begin), piece, ranks[0]->rank, 0);
      begin = piece.end;
    }
  }
};

}  // namespace ett
