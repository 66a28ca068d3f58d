// R15: the pieces of all ranks as one, the weakest link at each instant. Ranks are swept a block at a time, and what all
// of a block's pieces cover is merged in windows of time: both on as many threads as the team has.
#pragma once

#include "_piece_columns.hpp"
#include "_thread_team.hpp"

namespace ett {

class RankMerge {
 public:
  // `block`: how many pieces of a rank are held at once.
  RankMerge(std::vector<std::unique_ptr<RankSweep>>& ranks, const Facts& facts, ThreadTeam& team, size_t block)
      : ranks_(ranks), facts_(facts), team_(team), block_(block), buffers_(ranks.size()) {
    for (size_t r = 0; r < ranks.size(); ++r) by_number_.push_back(r);
    std::sort(by_number_.begin(), by_number_.end(), [&](size_t a, size_t b) { return ranks[a]->rank < ranks[b]->rank; });
  }

  // Add the pieces from `begin` to `end`; `begin` lies where the ranks' sweeps stand or after.
  void run(PieceColumns& out, int64_t begin, int64_t end) {
    for (int64_t now = begin; now < end;) {
      team_.each(ranks_.size(), [&](size_t r) { fill(r, now, end); });
      int64_t until = end;
      for (const Buffer& buffer : buffers_)
        if (!buffer.is_done) until = std::min(until, buffer.pieces.back().end);
      merge(out, now, until);
      now = until;
    }
  }

 private:
  struct Buffer {
    std::vector<Piece> pieces;  // of one rank, one after the other
    bool is_done = false;       // they reach the end
  };
  struct Window {
    size_t world;
    int64_t begin, end;
    struct Found {
      int64_t begin;
      const Piece* piece;
      size_t rank;  // its place
    };
    std::vector<Found> found;
  };
  struct Member {
    size_t rank;
    const Piece *piece, *last;  // one past
    bool is_silent;
  };

  std::vector<std::unique_ptr<RankSweep>>& ranks_;
  const Facts& facts_;
  ThreadTeam& team_;
  size_t block_;
  std::vector<Buffer> buffers_;
  std::vector<size_t> by_number_;  // places of ranks by their numbers: of two in one state the lower one counts

  void fill(size_t r, int64_t now, int64_t end) {
    Buffer& buffer = buffers_[r];
    auto& pieces = buffer.pieces;
    pieces.erase(pieces.begin(), std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.end <= now; }));
    if (buffer.is_done) return;
    for (Piece piece; pieces.size() < block_;) {
      buffer.is_done = (!pieces.empty() && pieces.back().end >= end) || !ranks_[r]->next_piece(piece);
      if (buffer.is_done) return;
      if (piece.end > now) pieces.push_back(piece);
    }
  }

  void merge(PieceColumns& out, int64_t begin, int64_t end) {
    std::vector<Window> windows;
    const auto parts = static_cast<int64_t>(team_.size() == 1 ? 1 : 2 * team_.size());
    for (size_t w = 0; w < facts_.worlds.size(); ++w) {
      const int64_t from = std::max(begin, facts_.worlds[w].begin), until = std::min(end, facts_.worlds[w].end);
      for (int64_t part = 0, at = from; at < until; ++part) {
        const int64_t next = part + 1 >= parts ? until : at + std::max<int64_t>(1, (until - at) / (parts - part));
        windows.push_back({w, at, next, {}});
        at = next;
      }
    }
    team_.each(windows.size(), [&](size_t i) { merge(windows[i]); });
    for (const Window& window : windows)
      for (const auto& [at, piece, r] : window.found)
        out.add(at, *piece, ranks_[r]->rank, static_cast<int64_t>(window.world));
  }

  void merge(Window& window) const {
    const World& world = facts_.worlds[window.world];
    std::vector<Member> members;
    for (size_t r : by_number_) {
      const int64_t number = ranks_[r]->rank;
      if (!std::binary_search(world.ranks.begin(), world.ranks.end(), number)) continue;
      const bool is_silent =
          !world.steppers.empty() && !std::binary_search(world.steppers.begin(), world.steppers.end(), number);
      const auto& pieces = buffers_[r].pieces;
      const Piece* last = pieces.data() + pieces.size();
      const Piece* first = std::partition_point(pieces.data(), last, [&](const Piece& p) { return p.end <= window.begin; });
      if (first != last) members.push_back({r, first, last, is_silent});
    }
    Counting counting(members.size());
    std::vector<std::pair<int64_t, size_t>> ends;  // a heap of when each member's piece ends, the first one on top
    for (size_t m = 0; m < members.size(); ++m) {
      ends.emplace_back(members[m].piece->end, m);
      if (counts(members[m])) counting.add(weakness(members[m].piece->label), m);
    }
    std::make_heap(ends.begin(), ends.end(), std::greater<>());
    for (int64_t now = window.begin; !ends.empty();) {
      if (const size_t m = counting.weakest(); m < members.size() &&
          (window.found.empty() || window.found.back().piece != members[m].piece))
        window.found.push_back({now, members[m].piece, members[m].rank});
      if (ends[0].first >= window.end) break;
      now = ends[0].first;
      while (!ends.empty() && ends[0].first <= now) {
        Member& member = members[ends[0].second];
        if (counts(member)) counting.remove(weakness(member.piece->label), ends[0].second);
        while (member.piece != member.last && member.piece->end <= now) ++member.piece;
        if (member.piece == member.last) {
          std::pop_heap(ends.begin(), ends.end(), std::greater<>());
          ends.pop_back();
          continue;
        }
        if (counts(member)) counting.add(weakness(member.piece->label), ends[0].second);
        ends[0].first = member.piece->end;
        sink(ends);
      }
    }
  }

  // Bring the heap in order after its top grew.
  static void sink(std::vector<std::pair<int64_t, size_t>>& heap) {
    const auto moved = heap[0];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < heap.size(); at = child) {
      if (child + 1 < heap.size() && heap[child + 1].first < heap[child].first) ++child;
      if (heap[child].first >= moved.first) break;
      heap[at] = heap[child];
    }
    heap[at] = moved;
  }

  // A rank that wrote no step of its generation counts only where one of its own spans or steps runs.
  static bool counts(const Member& member) {
    const int64_t label = member.piece->label;
    return !member.is_silent || label >= kFirstSpanLabel || label <= kStepAfterEnd;
  }

  // Which members count in which state, as bits.
  class Counting {
   public:
    explicit Counting(size_t num_members) : num_words_((num_members + 63) / 64), bits_(kStates * num_words_) {}
    void add(int state, size_t m) { bits_[state * num_words_ + m / 64] |= uint64_t{1} << m % 64, ++num_[state]; }
    void remove(int state, size_t m) { bits_[state * num_words_ + m / 64] &= ~(uint64_t{1} << m % 64), --num_[state]; }
    // The lowest member in the weakest state; SIZE_MAX where none counts.
    size_t weakest() const {
      for (size_t state = 0; state < kStates; ++state) {
        if (!num_[state]) continue;
        for (size_t word = 0;; ++word)
          if (const uint64_t bits = bits_[state * num_words_ + word])
            return word * 64 + static_cast<size_t>(__builtin_ctzll(bits));
      }
      return SIZE_MAX;
    }

   private:
    static constexpr size_t kStates = kShutdown + 1;
    size_t num_words_;
    std::vector<uint64_t> bits_;
    std::array<size_t, kStates> num_{};
  };
};

}  // namespace ett
