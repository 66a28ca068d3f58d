// id -> slot for 64-bit ids. A bucket is one cache line: five keys, their slots, and how many entries went past it, so a
// lookup costs one memory access (1.2 on average at full load) and needs no tags. Batches are probed with software
// prefetch, `kAhead` ids in advance. ett/trainer/sparse/numpy_id_index.py is the reference.
//
// The table is cut into segments by the hash's high bits. A segment grows alone, by a quarter, so the memory stays
// between 64 / 5 / 0.8 = 16 and 20 bytes an id and growing never holds two copies of the table.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace py = pybind11;

namespace {

constexpr int kKeys = 5;
constexpr int kSegmentBits = 8;
constexpr size_t kNumSegments = size_t{1} << kSegmentBits;
constexpr size_t kAhead = 24;              // the flat top of lookups/s over 8 to 64, 10^8 ids
constexpr size_t kIdsPerThread = 1 << 15;  // fewer are not worth starting a thread for
constexpr uint64_t kIndexKey = 0xA0761D6478BD642Full;  // as in numpy_id_index.py
constexpr size_t kHugePage = size_t{2} << 20;

struct alignas(64) Bucket {
  int64_t keys[kKeys];
  uint32_t slots[kKeys];
  uint16_t passed;  // entries that found no place here and stand further on; sticks at its greatest value
  uint8_t used;     // bit k: keys[k] is there
};
static_assert(sizeof(Bucket) == 64, "a bucket is a cache line");

uint64_t hash_of(int64_t id) {  // the finaliser of splitmix64, see ett/checkpoint/digest.py
  uint64_t z = static_cast<uint64_t>(id) ^ kIndexKey;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

inline unsigned matches(const Bucket& b, int64_t id) {
  unsigned found = 0;
  for (int k = 0; k < kKeys; ++k) found |= static_cast<unsigned>(b.keys[k] == id) << k;
  return found & b.used;
}

// Zeroed memory. Large blocks ask for huge pages, since every lookup is a random access; the part of a block that does
// not fill one stays in small pages, so nothing is rounded up to 2 MiB.
class Buckets {
 public:
  explicit Buckets(size_t count = 1) : count_(count) {
    bytes_ = count * sizeof(Bucket);
    if (bytes_ < kHugePage) {
      data_ = static_cast<Bucket*>(::operator new(bytes_, std::align_val_t{64}));
      std::memset(static_cast<void*>(data_), 0, bytes_);
      return;
    }
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    madvise(p, bytes_, MADV_HUGEPAGE);
    data_ = static_cast<Bucket*>(p);
    is_mapped_ = true;
  }
  Buckets(Buckets&& other) noexcept { swap(other); }
  Buckets& operator=(Buckets&& other) noexcept {
    swap(other);
    return *this;
  }
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;
  ~Buckets() {
    if (is_mapped_)
      munmap(data_, bytes_);
    else if (data_)
      ::operator delete(data_, std::align_val_t{64});
  }
  Bucket& operator[](size_t i) const { return data_[i]; }
  size_t size() const { return count_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(Buckets& other) {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    std::swap(bytes_, other.bytes_);
    std::swap(is_mapped_, other.is_mapped_);
  }
  Bucket* data_ = nullptr;
  size_t count_ = 0, bytes_ = 0;
  bool is_mapped_ = false;
};

struct Segment {
  Buckets buckets{1};
  size_t count = 0;

  size_t home(uint64_t hash) const {
    return static_cast<size_t>((static_cast<unsigned __int128>(hash << kSegmentBits) * buckets.size()) >> 64);
  }
  size_t after(size_t i) const { return i + 1 == buckets.size() ? 0 : i + 1; }
  static size_t limit(size_t num_buckets) { return num_buckets * kKeys * 4 / 5; }

  // Returns the slot, or -1.
  int64_t find(size_t i, int64_t id) const {
    for (size_t n = 0; n < buckets.size(); ++n, i = after(i)) {
      const Bucket& b = buckets[i];
      if (unsigned m = matches(b, id)) return b.slots[__builtin_ctz(m)];
      if (!b.passed) return -1;
    }
    return -1;
  }

  // Returns false where the id is there already. There must be room.
  bool insert(uint64_t hash, int64_t id, uint32_t slot) {
    if (find(home(hash), id) >= 0) return false;
    place(hash, id, slot);
    return true;
  }

  void place(uint64_t hash, int64_t id, uint32_t slot) {
    constexpr unsigned kFull = (1u << kKeys) - 1;
    for (size_t i = home(hash);; i = after(i)) {
      Bucket& b = buckets[i];
      if (b.used != kFull) {
        int k = __builtin_ctz(~static_cast<unsigned>(b.used));
        b.keys[k] = id;
        b.slots[k] = slot;
        b.used |= 1u << k;
        ++count;
        return;
      }
      if (b.passed != UINT16_MAX) ++b.passed;
    }
  }

  // Returns the slot that the id had, or -1.
  int64_t erase(uint64_t hash, int64_t id) {
    size_t i = home(hash), first = i;
    for (size_t n = 0; n < buckets.size(); ++n, i = after(i)) {
      Bucket& b = buckets[i];
      if (unsigned m = matches(b, id)) {
        int k = __builtin_ctz(m);
        b.used &= ~(1u << k);
        --count;
        for (size_t j = first; j != i; j = after(j))
          if (buckets[j].passed != UINT16_MAX) --buckets[j].passed;
        return b.slots[k];
      }
      if (!b.passed) return -1;
    }
    return -1;
  }

  void reserve(size_t wanted) {
    if (wanted <= limit(buckets.size())) return;
    size_t size = buckets.size() + buckets.size() / 4 + 1;
    while (limit(size) < wanted) size += size / 4 + 1;
    Segment grown;
    grown.buckets = Buckets(size);
    for (size_t i = 0; i < buckets.size(); ++i) {
      const Bucket& b = buckets[i];
      for (unsigned m = b.used; m; m &= m - 1) {
        int k = __builtin_ctz(m);
        grown.place(hash_of(b.keys[k]), b.keys[k], b.slots[k]);
      }
    }
    buckets = std::move(grown.buckets);
  }
};

using Ids = py::array_t<int64_t, py::array::c_style>;

Ids int64s(const py::array& ids) {  // a copy only where the ids are not contiguous; another type is not rounded
  if (!py::isinstance<py::array_t<int64_t>>(ids)) throw py::type_error("ids must be an array of int64");
  return Ids::ensure(ids);
}

template <class Work>
void in_threads(size_t num_threads, const Work& work) {  // work(thread) must not throw
  std::vector<std::thread> threads;
  for (size_t t = 1; t < num_threads; ++t) threads.emplace_back(work, t);
  work(0);
  for (auto& thread : threads) thread.join();
}

class IdIndex {
 public:
  explicit IdIndex(int threads) : num_threads_(static_cast<size_t>(threads < 1 ? 1 : threads)), segments_(kNumSegments) {}

  size_t size() const {
    std::shared_lock lock(mutex_);
    return count_;
  }

  size_t num_slots() const {
    std::shared_lock lock(mutex_);
    return next_slot_;
  }

  size_t bytes() const {
    std::shared_lock lock(mutex_);
    size_t total = free_.capacity() * sizeof(uint32_t) + segments_.size() * sizeof(Segment);
    for (const auto& segment : segments_) total += segment.buckets.bytes();
    return total;
  }

  Ids find(const py::array& array) const {
    Ids ids = int64s(array), slots(ids.size());
    const int64_t* in = ids.data();
    int64_t* out = slots.mutable_data();
    size_t n = static_cast<size_t>(ids.size());
    py::gil_scoped_release release;
    std::shared_lock lock(mutex_);
    size_t threads = threads_for(n);
    in_threads(threads, [&](size_t t) { find_range(in, out, n * t / threads, n * (t + 1) / threads); });
    return slots;
  }

  Ids insert(const py::array& array) {
    Ids ids = int64s(array), slots(ids.size());
    const int64_t* in = ids.data();
    int64_t* out = slots.mutable_data();
    size_t n = static_cast<size_t>(ids.size());
    size_t duplicate;
    {
      py::gil_scoped_release release;
      std::unique_lock lock(mutex_);
      duplicate = insert_all(in, out, n);
    }
    if (duplicate < n)
      throw py::value_error("id " + std::to_string(in[duplicate]) + " is in the index, or in this batch, already");
    return slots;
  }

  Ids erase(const py::array& array) {
    Ids ids = int64s(array), slots(ids.size());
    const int64_t* in = ids.data();
    int64_t* out = slots.mutable_data();
    size_t n = static_cast<size_t>(ids.size());
    py::gil_scoped_release release;
    std::unique_lock lock(mutex_);
    free_.reserve(free_.size() + n);
    for (size_t i = 0; i < n; ++i) {
      uint64_t hash = hash_of(in[i]);
      out[i] = segment(hash).erase(hash, in[i]);
      if (out[i] < 0) continue;
      free_.push_back(static_cast<uint32_t>(out[i]));
      --count_;
    }
    return slots;
  }

  py::tuple items() const {
    size_t n = size();
    Ids ids(static_cast<py::ssize_t>(n)), slots(static_cast<py::ssize_t>(n));
    int64_t *id = ids.mutable_data(), *slot = slots.mutable_data();
    py::gil_scoped_release release;
    std::shared_lock lock(mutex_);
    if (count_ != n) throw std::runtime_error("the index changed while it was listed");
    for (const auto& s : segments_)
      for (size_t i = 0; i < s.buckets.size(); ++i)
        for (unsigned m = s.buckets[i].used; m; m &= m - 1) {
          int k = __builtin_ctz(m);
          *id++ = s.buckets[i].keys[k];
          *slot++ = s.buckets[i].slots[k];
        }
    py::gil_scoped_acquire acquire;
    return py::make_tuple(ids, slots);
  }

  void clear() {
    std::unique_lock lock(mutex_);
    segments_ = std::vector<Segment>(kNumSegments);
    free_ = {};
    count_ = next_slot_ = 0;
  }

 private:
  static size_t number(uint64_t hash) { return hash >> (64 - kSegmentBits); }
  Segment& segment(uint64_t hash) { return segments_[number(hash)]; }
  size_t threads_for(size_t n) const { return std::min(num_threads_, n / kIdsPerThread + 1); }

  void find_range(const int64_t* in, int64_t* out, size_t begin, size_t end) const {
    size_t homes[kAhead];
    const Segment* where[kAhead];
    auto look_ahead = [&](size_t i) {
      uint64_t hash = hash_of(in[i]);
      const Segment& s = segments_[number(hash)];
      where[i % kAhead] = &s;
      homes[i % kAhead] = s.home(hash);
      __builtin_prefetch(&s.buckets[homes[i % kAhead]]);
    };
    for (size_t i = begin; i < std::min(end, begin + kAhead); ++i) look_ahead(i);
    for (size_t i = begin; i < end; ++i) {
      out[i] = where[i % kAhead]->find(homes[i % kAhead], in[i]);
      if (i + kAhead < end) look_ahead(i + kAhead);
    }
  }

  // Returns the place in the batch of an id that is there already, after undoing the batch; else n.
  size_t insert_all(const int64_t* in, int64_t* out, size_t n) {
    size_t reused = std::min(n, free_.size());
    if (next_slot_ + (n - reused) > UINT32_MAX) throw std::length_error("an index holds at most 2^32 - 1 ids");
    std::vector<uint8_t> is_placed(n);
    std::vector<size_t> wanted(kNumSegments);
    for (size_t i = 0; i < n; ++i) ++wanted[number(hash_of(in[i]))];
    std::atomic<bool> no_memory{false};
    std::atomic<size_t> duplicate{n};
    for (size_t i = 0; i < n; ++i)
      out[i] = i < reused ? free_[free_.size() - 1 - i] : static_cast<int64_t>(next_slot_ + (i - reused));
    size_t threads = threads_for(n);
    in_threads(threads, [&](size_t t) {
      size_t first = kNumSegments * t / threads, last = kNumSegments * (t + 1) / threads;
      try {
        for (size_t s = first; s < last; ++s)
          if (wanted[s]) segments_[s].reserve(segments_[s].count + wanted[s]);
      } catch (const std::bad_alloc&) {
        no_memory = true;
        return;
      }
      insert_part(in, out, n, first, last, is_placed, duplicate);
    });
    if (!no_memory && duplicate == n) {
      free_.resize(free_.size() - reused);
      next_slot_ += n - reused;
      count_ += n;
      return n;
    }
    for (size_t i = 0; i < n; ++i)
      if (is_placed[i]) segment(hash_of(in[i])).erase(hash_of(in[i]), in[i]);
    if (no_memory) throw std::bad_alloc();
    return duplicate;
  }

  void insert_part(const int64_t* in, const int64_t* out, size_t n, size_t first, size_t last,
                   std::vector<uint8_t>& is_placed, std::atomic<size_t>& duplicate) {
    auto is_own = [&](uint64_t hash) { return number(hash) >= first && number(hash) < last; };
    for (size_t i = 0; i < n; ++i) {
      if (i + kAhead < n) {
        uint64_t ahead = hash_of(in[i + kAhead]);
        if (is_own(ahead)) __builtin_prefetch(&segment(ahead).buckets[segment(ahead).home(ahead)], 1);
      }
      uint64_t hash = hash_of(in[i]);
      if (!is_own(hash)) continue;
      is_placed[i] = segment(hash).insert(hash, in[i], static_cast<uint32_t>(out[i]));
      if (is_placed[i]) continue;
      size_t seen = duplicate;
      while (i < seen && !duplicate.compare_exchange_weak(seen, i)) {
      }
    }
  }

  const size_t num_threads_;
  mutable std::shared_mutex mutex_;
  std::vector<Segment> segments_;
  std::vector<uint32_t> free_;  // slots of erased ids, reused last in, first out
  size_t count_ = 0, next_slot_ = 0;
};

}  // namespace

PYBIND11_MODULE(_index, m) {
  py::class_<IdIndex>(m, "IdIndex")
      .def(py::init<int>(), py::arg("threads"))
      .def("__len__", &IdIndex::size)
      .def_property_readonly("num_slots", &IdIndex::num_slots)
      .def_property_readonly("bytes", &IdIndex::bytes)
      .def("find", &IdIndex::find, py::arg("ids"))
      .def("insert", &IdIndex::insert, py::arg("ids"))
      .def("erase", &IdIndex::erase, py::arg("ids"))
      .def("items", &IdIndex::items)
      .def("clear", &IdIndex::clear);
}
