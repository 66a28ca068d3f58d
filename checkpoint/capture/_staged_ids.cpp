// Where rows stand in the staging memory, by id: put once, found often, never taken out. checkpoint/capture/staged_ids.py
// has the same with a dict. And rows copied from there to where they are wanted, as checkpoint/capture/staged_rows.py
// does with numpy. Pointers come as integers, and no call holds the GIL.

#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace py = pybind11;

namespace {

using Address = uintptr_t;

constexpr int64_t kNone = -1;
constexpr int64_t kAhead = 16;  // of random entries asked for before they are needed

class StagedIds {
 public:
  StagedIds() : entries_(64) {}

  int64_t size() const { return size_; }

  // ids: int64 [count], none of them known; they stand from `first` on.
  void put(Address ids_at, int64_t count, int64_t first) {
    py::gil_scoped_release release;
    const auto* ids = reinterpret_cast<const int64_t*>(ids_at);
    while (2 * (size_ + count) > static_cast<int64_t>(entries_.size())) grow();
    for (int64_t i = 0; i < count; ++i) add(ids[i], first + i);
    size_ += count;
  }

  // out: int64 [count], -1 where an id is not known.
  void find(Address ids_at, int64_t count, Address out) const {
    py::gil_scoped_release release;
    const auto* ids = reinterpret_cast<const int64_t*>(ids_at);
    auto* places = reinterpret_cast<int64_t*>(out);
    for (int64_t i = 0; i < count; ++i) {
      if (i + kAhead < count) __builtin_prefetch(&entries_[start(ids[i + kAhead])]);
      uint64_t at = start(ids[i]);
      while (entries_[at].place != kNone && entries_[at].id != ids[i]) at = (at + 1) & (entries_.size() - 1);
      places[i] = entries_[at].place;
    }
  }

 private:
  struct Entry {
    int64_t id = 0;
    int64_t place = kNone;
  };

  uint64_t start(int64_t id) const {
    uint64_t mixed = static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15u;
    mixed ^= mixed >> 32;
    return mixed * 0xD6E8FEB86659FD93u >> 20 & (entries_.size() - 1);
  }

  void add(int64_t id, int64_t place) {
    uint64_t at = start(id);
    while (entries_[at].place != kNone) at = (at + 1) & (entries_.size() - 1);
    entries_[at] = {id, place};
  }

  void grow() {
    std::vector<Entry> old(entries_.size() * 2);
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (entry.place != kNone) add(entry.id, entry.place);
    }
  }

  std::vector<Entry> entries_;
  int64_t size_ = 0;
};

// places: int64 [count], numbers of rows in blocks of so many rows, a block every block_bytes from staged on; at: int64
// [count], numbers of rows of out.
void take(Address staged_at, int64_t block_bytes, int64_t block_rows, int64_t width, Address places_at, Address at_at,
          int64_t count, Address out_at) {
  py::gil_scoped_release release;
  const auto* staged = reinterpret_cast<const unsigned char*>(staged_at);
  const auto* places = reinterpret_cast<const int64_t*>(places_at);
  const auto* at = reinterpret_cast<const int64_t*>(at_at);
  auto* out = reinterpret_cast<unsigned char*>(out_at);
  const auto row = [&](int64_t i) {
    return staged + places[i] / block_rows * block_bytes + places[i] % block_rows * width;
  };
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(row(i + kAhead));
    std::memcpy(out + at[i] * width, row(i), static_cast<size_t>(width));
  }
}

}  // namespace

PYBIND11_MODULE(_staged_ids, module) {
  module.def("take", &take);
  py::class_<StagedIds>(module, "StagedIds")
      .def(py::init<>())
      .def("size", &StagedIds::size)
      .def("put", &StagedIds::put)
      .def("find", &StagedIds::find);
}
