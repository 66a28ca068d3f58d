// Where rows stand in the staging memory, by id: put once, found often, never taken out. checkpoint/capture/staged_ids.py
// has the same with a dict; pointers come as integers, and no call holds the GIL.

#include <pybind11/pybind11.h>

#include <cstdint>
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

}  // namespace

PYBIND11_MODULE(_staged_ids, module) {
  py::class_<StagedIds>(module, "StagedIds")
      .def(py::init<>())
      .def("size", &StagedIds::size)
      .def("put", &StagedIds::put)
      .def("find", &StagedIds::find);
}
