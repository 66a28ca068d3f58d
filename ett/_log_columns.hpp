// The plain records of one log by stream: records of one kind, writer, rank, attempt, generation and layout, of which only
// what varies is stored, each field as a DeltaColumn. Also which sequence numbers of which file are there.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "_delta_column.hpp"
#include "_line_parser.hpp"

namespace ett {

constexpr int64_t kNone = INT64_MIN;             // "not there", and a high-water mark that nothing reached
constexpr int64_t kLimit = int64_t{1} << 60;     // numbers beyond it could overflow when added: left to Python
constexpr int64_t kWallLimit = int64_t{1} << 62;  // of Unix nanoseconds: the year 2116
constexpr int64_t kNoRank = kNone;

// Sequence numbers as disjoint ranges; a file whose numbers have no gap is one range.
class SequenceNumbers {
 public:
  bool add(int64_t number) {
    ++count_;
    max_ = std::max(max_, number);
    if (last_ != ranges_.end() && number == last_->second + 1) {
      auto next = std::next(last_);
      if (next == ranges_.end() || next->first > number) return extend(number), true;
    }
    auto after = ranges_.upper_bound(number);
    if (after != ranges_.begin() && std::prev(after)->second >= number) return --count_, false;
    if (after != ranges_.begin() && std::prev(after)->second == number - 1) {
      last_ = std::prev(after);
      return extend(number), true;
    }
    last_ = ranges_.emplace(number, number).first;
    join_next();
    return true;
  }
  int64_t lost() const { return count_ ? max_ + 1 - count_ : 0; }

 private:
  std::map<int64_t, int64_t> ranges_;
  std::map<int64_t, int64_t>::iterator last_ = ranges_.end();
  int64_t count_ = 0, max_ = kNone;

  void extend(int64_t number) {
    last_->second = number;
    join_next();
  }
  void join_next() {
    auto next = std::next(last_);
    if (next != ranges_.end() && next->first == last_->second + 1) {
      last_->second = next->second;
      ranges_.erase(next);
    }
  }
};

struct Stream {
  std::array<int64_t, kRowWidth> key{};  // the first row; columns that vary are 0
  int64_t file = 0, rank = kNoRank;
  size_t kind = 0;  // of kPlainKinds
  bool is_supervisors = false;
  bool is_sorted = true;  // of steps: by begin, end, number; of the rest: by time and sequence number
  std::array<DeltaColumn, kNumColumns> columns;
  int64_t earliest = INT64_MAX, latest = INT64_MIN;  // mono_ns
  size_t earliest_row = 0, latest_row = 0;
  std::array<int64_t, 5> last{};  // sort key of the last row
  bool overlaps = false;          // a step begins before another has ended
  int64_t latest_end = INT64_MIN;

  bool has(size_t c) const { return key[kRowWidth - 1] >> c & 1; }
  int64_t text(size_t c) const { return has(c) ? key[c] : -1; }
  int64_t att() const { return key[kAtt]; }
  int64_t gen() const { return key[kGen]; }
  size_t size() const { return columns[kMono].size(); }
  bool has_cursor() const { return has(kC0) && has(kC1); }
};

// Reads rows of a stream; times are mono_ns as they were written.
class StreamReader {
 public:
  explicit StreamReader(const Stream* s) : stream(s) {
    for (size_t c : kVarying) readers_[c] = DeltaReader(&s->columns[c]);
  }
  const Stream* stream;
  int64_t b(size_t i) { return readers_[kBMono][i]; }
  int64_t e(size_t i) { return b(i) + readers_[kEMono][i]; }
  int64_t mono(size_t i) { return readers_[kMono][i] + (stream->has(kEMono) && stream->has(kBMono) ? e(i) : 0); }
  int64_t wall(size_t i) { return readers_[kWall][i] + mono(i); }
  int64_t c0(size_t i) { return readers_[kC0][i]; }
  int64_t c1(size_t i) { return readers_[kC1][i] + (stream->has(kC0) ? c0(i) : 0); }
  int64_t number(size_t i) { return stream->has(kStep) ? readers_[kStep][i] : readers_[kC0][i]; }
  int64_t raw(size_t c, size_t i) { return readers_[c][i]; }
  int64_t value(size_t c, size_t i) {
    if (!is_varying(c)) return stream->key[c];
    if (c == kEMono && stream->has(kBMono)) return e(i);
    return c == kMono ? mono(i) : c == kWall ? wall(i) : c == kC1 ? c1(i) : readers_[c][i];
  }

 private:
  std::array<DeltaReader, kNumColumns> readers_;
};

class LogColumns {
 public:
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::string> texts;
  bool is_odd = false;  // holds what only Python may judge
  int64_t num_malformed = 0, num_duplicates = 0, num_rows = 0;
  int64_t outline = 0;  // changes with what `outline_rows` returns

  // The earliest row of each writer's records of one attempt and generation, and the earliest that is no heartbeat.
  std::vector<std::pair<size_t, size_t>> outline_rows() const {
    std::map<std::array<int64_t, 9>, std::array<size_t, 2>> groups;
    auto is_earlier = [&](size_t a, size_t b) {
      const Stream &p = *streams[a], &q = *streams[b];
      return std::pair(p.earliest, first_seq(p)) < std::pair(q.earliest, first_seq(q));
    };
    for (size_t i = 0; i < streams.size(); ++i) {
      const Stream& s = *streams[i];
      if (!s.size()) continue;
      const std::array<int64_t, 9> group{s.file, s.att(), s.gen(), s.rank, s.text(kSrc), s.text(kHost), s.text(kBoot),
                                         s.key[kPid], s.text(kJob)};
      auto& [any, other] = groups.try_emplace(group, std::array<size_t, 2>{SIZE_MAX, SIZE_MAX}).first->second;
      if (any == SIZE_MAX || is_earlier(i, any)) any = i;
      if (s.kind != 1 && (other == SIZE_MAX || is_earlier(i, other))) other = i;
    }
    std::vector<std::pair<size_t, size_t>> found;
    for (const auto& [group, rows] : groups)
      for (size_t i : std::set<size_t>(rows.begin(), rows.end()))
        if (i != SIZE_MAX) found.emplace_back(i, streams[i]->earliest_row);
    return found;
  }

  // Of an attempt: every span's row, and the latest row of each stream.
  std::vector<std::pair<size_t, size_t>> span_and_latest_rows(int64_t att) const {
    std::vector<std::pair<size_t, size_t>> found;
    for (size_t i = 0; i < streams.size(); ++i) {
      const Stream& s = *streams[i];
      if (s.att() != att || !s.size()) continue;
      if (s.kind != 2 && s.kind != 3) found.emplace_back(i, s.latest_row);
      else
        for (size_t row = 0; row < s.size(); ++row) found.emplace_back(i, row);
    }
    return found;
  }

  // Whether a hook wrote a span of the attempt.
  bool has_inferred_span(int64_t att) const {
    return std::any_of(streams.begin(), streams.end(), [&](const auto& s) {
      return s->kind == 2 && s->att() == att && s->size() && s->has(kInferred) && s->key[kInferred] == 1;
    });
  }

  // The latest row of each attempt, by normalised time.
  std::vector<std::pair<size_t, size_t>> latest_rows(const std::map<std::pair<int64_t, int64_t>, int64_t>& clocks) const {
    std::map<int64_t, std::pair<int64_t, size_t>> latest;
    std::pair<int64_t, int64_t> place{-2, -2};
    int64_t clock = 0;
    for (size_t i = 0; i < streams.size(); ++i) {
      const Stream& s = *streams[i];
      if (!s.size()) continue;
      const std::pair<int64_t, int64_t> own{s.text(kHost), s.text(kBoot)};
      if (own != place) clock = clocks.at(place = own);
      auto [found, is_new] = latest.try_emplace(s.att(), s.latest + clock, i);
      if (!is_new && s.latest + clock > found->second.first) found->second = {s.latest + clock, i};
    }
    std::vector<std::pair<size_t, size_t>> found;
    for (const auto& [att, best] : latest) found.emplace_back(best.second, streams[best.second]->latest_row);
    return found;
  }

  int64_t text_id(const std::string& text) {
    auto [found, is_new] = text_ids_.try_emplace(text, static_cast<int64_t>(texts.size()));
    if (is_new) texts.push_back(text);
    return found->second;
  }

  // One record of a file, plain or not: whether its number is new there. `writer`: src, host, boot, pid, file.
  bool add_number(const std::array<int64_t, 5>& writer, int64_t seq, int64_t mono) {
    const int64_t file = writer[4];
    auto& numbers = file == last_file_ ? *last_numbers_ : *(last_numbers_ = &numbers_[last_file_ = file]);
    if (!numbers.add(seq)) return ++num_duplicates, false;
    if (!last_span_ || writer != last_writer_)
      last_span_ = &written_.try_emplace(last_writer_ = writer, INT64_MAX, INT64_MIN).first->second;
    last_span_->first = std::min(last_span_->first, mono);
    last_span_->second = std::max(last_span_->second, mono);
    return true;
  }

  int64_t num_lost() const {
    int64_t sum = 0;
    for (const auto& [file, numbers] : numbers_) sum += numbers.lost();
    return sum;
  }

  // A writer that two files have at one time: one may be a copy of the other, record by record.
  bool may_hold_copies() const {
    const std::array<int64_t, 5>* last = nullptr;
    std::vector<std::pair<int64_t, int64_t>> spans;
    auto overlap = [&] {
      std::sort(spans.begin(), spans.end());
      for (size_t i = 1; i < spans.size(); ++i)
        if (spans[i].first <= spans[i - 1].second) return true;
      return false;
    };
    for (const auto& [writer, span] : written_) {
      if (last && !std::equal(writer.begin(), writer.begin() + 4, last->begin())) {
        if (overlap()) return true;
        spans.clear();
      }
      spans.push_back(span);
      last = &writer;
    }
    return overlap();
  }

  // Where the records of one layout of one file go. Found once for all of them that a chunk has.
  struct Home {
    int64_t file = 0;
    size_t kind = 0;
    bool is_whole = false;
    std::array<int64_t, kRowWidth> key{};
    std::array<int64_t, 5> writer{};
    Stream* stream = nullptr;  // from the first record on that is new
  };

  // Of a layout whose texts are places in `local`.
  Home home_of(int64_t file, const std::array<int64_t, kRowWidth>& key, const std::vector<int64_t>& local) {
    Home home;
    home.file = file, home.key = key;
    const int64_t present = key[kRowWidth - 1];
    for (size_t c = 0; c < kNumColumns; ++c) {
      if (!(present >> c & 1)) continue;
      if (is_text_column(c)) home.key[c] = local[key[c]];
      else is_odd |= is_beyond(c, key[c]);
    }
    home.kind = kind_of(home.key[kEv]);
    home.is_whole = is_whole(home.kind, present);
    auto text = [&](size_t c) { return present >> c & 1 ? home.key[c] : empty_; };
    home.writer = {text(kSrc), text(kHost), text(kBoot), home.key[kPid], file};
    return home;
  }

  // Takes a parsed row of that layout, of which only what varies is looked at; whether it is kept.
  bool add_row(Home& home, const int64_t* row) {
    const int64_t present = home.key[kRowWidth - 1];
    for (size_t c : kVarying)
      if (present >> c & 1) is_odd |= is_beyond(c, row[c]);
    if (!home.is_whole) return ++num_malformed, false;
    if (!add_number(home.writer, row[kSeq], row[kMono])) return false;
    if (!home.stream) home.stream = &stream_of(home.file, home.key, home.kind);
    push(*home.stream, row);
    return ++num_rows, true;
  }

  bool add_row(int64_t file, const int64_t* row, const std::vector<int64_t>& local) {
    std::array<int64_t, kRowWidth> key{};
    for (size_t c = 0; c < kRowWidth; ++c)
      if (!is_varying(c)) key[c] = row[c];
    Home home = home_of(file, key, local);
    return add_row(home, row);
  }

  // The order in which steps of one rank run, and in which other records are read.
  static std::array<int64_t, 5> order(const Stream& s, const int64_t* row) {
    if (s.kind != 0) return {row[kMono], row[kSeq], 0, 0, 0};
    return {row[kBMono], std::max(row[kBMono], row[kEMono]), s.has(kStep) ? row[kStep] : row[kC0], row[kMono], row[kSeq]};
  }

  // Bring the rows of a stream that was written out of order into it.
  void sort(Stream& s) {
    StreamReader reader(&s);
    std::vector<std::array<int64_t, kRowWidth>> rows(s.size());
    for (size_t i = 0; i < rows.size(); ++i)
      for (size_t c = 0; c < kNumColumns; ++c) rows[i][c] = s.has(c) ? reader.value(c, i) : 0;
    std::stable_sort(rows.begin(), rows.end(),
                     [&](const auto& a, const auto& b) { return order(s, a.data()) < order(s, b.data()); });
    s.columns = {};
    s.earliest = INT64_MAX, s.latest = s.latest_end = INT64_MIN, s.overlaps = false;
    for (const auto& row : rows) push(s, row.data());
    s.is_sorted = true;
  }

 private:
  std::unordered_map<std::string, int64_t> text_ids_;
  std::unordered_map<int64_t, SequenceNumbers> numbers_;
  std::map<std::array<int64_t, 5>, std::pair<int64_t, int64_t>> written_;
  std::map<std::pair<int64_t, std::array<int64_t, kRowWidth>>, Stream*> by_key_;
  std::array<std::array<Stream*, 2>, kPlainKinds.size()> last_stream_{};  // of each kind: they alternate in a file
  std::unordered_map<int64_t, size_t> kinds_;
  int64_t last_file_ = -1;
  SequenceNumbers* last_numbers_ = nullptr;
  std::array<int64_t, 5> last_writer_{};
  std::pair<int64_t, int64_t>* last_span_ = nullptr;
  int64_t empty_ = text_id("");

  size_t kind_of(int64_t ev) {
    auto found = kinds_.find(ev);
    if (found != kinds_.end()) return found->second;
    for (size_t kind = 0; kind < kPlainKinds.size(); ++kind)
      if (kPlainKinds[kind] == texts[ev]) return kinds_[ev] = kind;
    return kinds_[ev] = kPlainKinds.size();
  }

  static bool is_beyond(size_t c, int64_t value) {
    const int64_t most = c == kWall ? kWallLimit : kLimit;
    return value > most || value < -most;
  }

  static bool is_whole(size_t kind, int64_t present) {
    auto has = [&](size_t c) { return (present >> c & 1) != 0; };
    if (!has(kSrc) || !has(kSeq) || !has(kWall) || !has(kMono)) return false;
    switch (kind) {
      case 0: return has(kBMono) && has(kEMono) && ((has(kC0) && has(kC1)) || (has(kSamples) && has(kStep)));
      case 2: return has(kId) && has(kName);
      case 3: return has(kId);
      default: return true;
    }
  }

  Stream& stream_of(int64_t file, const std::array<int64_t, kRowWidth>& key, size_t kind) {
    auto& last = last_stream_[kind];
    for (size_t i = 0; i < 2; ++i)
      if (last[i] && last[i]->file == file && last[i]->key == key) {
        if (i) std::swap(last[0], last[1]);
        return *last[0];
      }
    auto [found, is_new] = by_key_.try_emplace({file, key}, nullptr);
    if (is_new) {
      streams.push_back(std::make_unique<Stream>());
      Stream& s = *streams.back();
      s.key = key, s.file = file, s.kind = kind;
      const std::string& src = texts[key[kSrc]];
      s.is_supervisors = src == "sup";
      if (s.has(kRank)) s.rank = key[kRank];
      else if (src.size() > 1 && src[0] == 'r' && src.find_first_not_of("0123456789", 1) == std::string::npos)
        src.size() > 18 ? void(is_odd = true) : void(s.rank = std::stoll(src.substr(1)));
      found->second = &s;
    }
    last[1] = last[0];
    return *(last[0] = found->second);
  }

  void push(Stream& s, const int64_t* row) {
    const auto key = order(s, row);
    if (s.size() && key < s.last) s.is_sorted = false;
    s.last = key;
    if (s.kind == 0) s.overlaps |= row[kBMono] < s.latest_end, s.latest_end = std::max({s.latest_end, row[kBMono], row[kEMono]});
    if (row[kMono] < s.earliest || (row[kMono] == s.earliest && row[kSeq] < first_seq(s)))
      s.earliest = row[kMono], s.earliest_row = s.size(), ++outline;
    if (row[kMono] >= s.latest) s.latest = row[kMono], s.latest_row = s.size();
    for (size_t c : kVarying) {
      if (!s.has(c)) continue;
      int64_t value = row[c];
      if (c == kEMono && s.has(kBMono)) value -= row[kBMono];
      if (c == kC1 && s.has(kC0)) value -= row[kC0];
      if (c == kWall) value -= row[kMono];
      if (c == kMono && s.has(kEMono) && s.has(kBMono)) value -= row[kEMono];
      s.columns[c].push(value);
    }
  }

  static int64_t first_seq(const Stream& s) { return s.columns[kSeq][s.earliest_row]; }
};

}  // namespace ett
