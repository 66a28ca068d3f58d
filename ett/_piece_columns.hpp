// Pieces of an attempt as columns: each begins where the one before ends.
#pragma once

#include <memory>

#include "_rank_sweep.hpp"

namespace ett {

using Intervals = std::vector<std::pair<int64_t, int64_t>>;  // sorted and disjoint

// References as two columns of small differences: where it lies (0: nowhere, 1: spans, 2: recovered steps, else a stream,
// of steps or of step_begins) and its row there.
inline int64_t place_of(int64_t ref) {
  if (ref < 0) return 0;
  if (ref & kSpan) return 1;
  return ref & kExtra ? 2 : static_cast<int64_t>(stream_of_ref(ref)) * 2 + ((ref & kOpen) != 0) + 3;
}
inline int64_t row_at(int64_t ref) {
  if (ref < 0) return 0;
  return ref & (kSpan | kExtra) ? ref & ~(kSpan | kExtra) : static_cast<int64_t>(row_of_ref(ref));
}
inline int64_t ref_at(int64_t place, int64_t row) {
  if (place == 0) return -1;
  if (place < 3) return (place == 1 ? kSpan : kExtra) | row;
  return row_ref(static_cast<size_t>(place - 3) / 2, static_cast<size_t>(row)) | ((place - 3) % 2 ? kOpen : 0);
}

// Pieces as they are found; a piece that goes on where it was cut is one piece.
class PieceColumns {
 public:
  DeltaColumn begins, labels, places, rows, ranks;
  int64_t end = 0;

  void add(int64_t begin, const Piece& piece, int64_t rank, int64_t world) {
    const std::array<int64_t, 5> source{rank, piece.source, piece.label, piece.ref, world};
    if ((begins.size() || goes_on_) && source == last_) return;
    last_ = source;
    push(begin, piece.label, piece.ref, rank);
  }
  void push(int64_t begin, int64_t label, int64_t ref, int64_t rank) {
    begins.push(begin), labels.push(label), places.push(place_of(ref)), rows.push(row_at(ref)), ranks.push(rank);
  }
  const std::array<int64_t, 5>& last() const { return last_; }
  void go_on_after(const std::array<int64_t, 5>& last) { last_ = last, goes_on_ = true; }
  size_t size() const { return begins.size(); }

 private:
  std::array<int64_t, 5> last_{};
  bool goes_on_ = false;
};

struct PieceRow {
  int64_t begin, end, label, ref, rank;
};

// Settled pieces, which are shared and only grow, and the pieces after them.
struct PieceTable {
  std::shared_ptr<PieceColumns> settled;
  size_t num_settled = 0;
  std::shared_ptr<PieceColumns> tail;
  int64_t end = 0;

  size_t size() const { return num_settled + tail->size(); }

  class Reader {
   public:
    explicit Reader(const PieceTable& table) : table_(table) {
      if (table.settled) open(0, *table.settled);
      open(1, *table.tail);
    }
    PieceRow row(size_t i) {
      const bool late = i >= table_.num_settled;
      const size_t at = late ? i - table_.num_settled : i;
      auto& r = readers_[late];
      return {r[0][at], i + 1 < table_.size() ? begin(i + 1) : table_.end, r[1][at], ref_at(r[2][at], r[3][at]), r[4][at]};
    }
    int64_t begin(size_t i) {
      const bool late = i >= table_.num_settled;
      return begins_[late][late ? i - table_.num_settled : i];
    }

   private:
    const PieceTable& table_;
    std::array<std::array<DeltaReader, 5>, 2> readers_;
    std::array<DeltaReader, 2> begins_;  // one row ahead
    void open(size_t part, const PieceColumns& columns) {
      readers_[part] = {DeltaReader(&columns.begins), DeltaReader(&columns.labels), DeltaReader(&columns.places),
                        DeltaReader(&columns.rows), DeltaReader(&columns.ranks)};
      begins_[part] = DeltaReader(&columns.begins);
    }
  };

  // The first piece that ends after `time`.
  size_t find(int64_t time) const {
    Reader reader(*this);
    size_t low = 0, high = size();
    while (low < high) {
      const size_t middle = (low + high) / 2;
      (middle + 1 < size() ? reader.begin(middle + 1) : end) <= time ? low = middle + 1 : high = middle;
    }
    return low;
  }

  // Calls add(row, ns) with the time of each piece inside `kept`, 0 left out.
  template <typename F>
  void measure(const Intervals& kept, F add) const {
    Reader reader(*this);
    size_t k = 0;
    for (size_t i = kept.empty() ? size() : find(kept[0].first); i < size(); ++i) {
      const PieceRow row = reader.row(i);
      while (k < kept.size() && kept[k].second <= row.begin) ++k;
      if (k == kept.size()) break;
      int64_t ns = 0;
      for (size_t j = k; j < kept.size() && kept[j].first < row.end; ++j)
        ns += std::max<int64_t>(0, std::min(row.end, kept[j].second) - std::max(row.begin, kept[j].first));
      if (ns) add(row, ns);
    }
  }
};

}  // namespace ett
