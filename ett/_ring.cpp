// Records of whole numbers as lines of the event log, and such lines into a ring: what ett/event_line.py and ett/ring.py
// do in Python, byte for byte. Nothing here calls back into Python or gives up the GIL: no thread and no signal handler
// comes between, and a record that this cannot write is left to Python before anything has changed.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <time.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "_crc32.hpp"

namespace py = pybind11;

namespace {

constexpr size_t kMaxBody = 4096 - 10;  // MAX_LINE_BYTES less the checksum's part
constexpr size_t kMostValues = 16;
constexpr size_t kNumberBytes = 20;     // of the longest 64-bit number
constexpr int kMono = -1, kSeq = -2, kWall = -3;
const ett::Crc kCrc;

struct Stamps {
  int64_t seq, wall_ns, mono_ns;
};

int64_t now_ns(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// The canonical JSON of one kind of record: its constant text, and between the pieces of it where each value goes.
class Format {
 public:
  // `slots` has one less than `texts`: a value's place among those given, or which stamp.
  Format(std::vector<std::string> texts, std::vector<int> slots) : texts_(std::move(texts)), slots_(std::move(slots)) {
    size_t size = 0;
    for (const auto& text : texts_) size += text.size();
    fits_ = texts_.size() == slots_.size() + 1 && size + slots_.size() * kNumberBytes <= kMaxBody;
  }

  // Writes the line to `out`, which holds 4,096 bytes, and returns its size; 0 where a value is no number of 64 bits.
  size_t line(char* out, const py::dict& fields, const Stamps& stamps) const {
    PyObject* values[kMostValues];
    size_t count = 0;
    Py_ssize_t place = 0;
    PyObject *name, *value;
    while (PyDict_Next(fields.ptr(), &place, &name, &value)) {
      if (count == kMostValues) return 0;
      values[count++] = value;
    }
    if (!fits_) return 0;
    char* at = out;
    for (size_t i = 0; i < slots_.size(); ++i) {
      at = copied(at, texts_[i]);
      int64_t number;
      switch (slots_[i]) {
        case kMono: number = stamps.mono_ns; break;
        case kSeq: number = stamps.seq; break;
        case kWall: number = stamps.wall_ns; break;
        default: {
          if (static_cast<size_t>(slots_[i]) >= count) return 0;
          value = values[slots_[i]];
          if (value == Py_True || value == Py_False) {
            at = copied(at, value == Py_True ? "true" : "false");
            continue;
          }
          if (!PyLong_CheckExact(value)) return 0;
          int overflow;
          number = PyLong_AsLongLongAndOverflow(value, &overflow);
          if (overflow) return 0;
        }
      }
      at = std::to_chars(at, at + kNumberBytes, number).ptr;
    }
    at = copied(at, texts_.back());
    uint32_t crc = kCrc.of(out, static_cast<size_t>(at - out));
    *at++ = '\t';
    for (int i = 0; i < 8; ++i, crc <<= 4) *at++ = "0123456789abcdef"[crc >> 28];
    *at++ = '\n';
    return static_cast<size_t>(at - out);
  }

 private:
  static char* copied(char* at, std::string_view text) {
    std::memcpy(at, text.data(), text.size());
    return at + text.size();
  }

  std::vector<std::string> texts_;
  std::vector<int> slots_;
  bool fits_;
};

// The writer's side of one ring (ett/ring.py). Word numbers are that file's.
class Appender {
 public:
  Appender(const py::buffer& map, size_t header_bytes) : view_(map.request(true)) {
    base_ = static_cast<char*>(view_.ptr);
    words_ = reinterpret_cast<uint64_t*>(base_);
    data_ = base_ + header_bytes;
    capacity_ = words_[kCapacity];
    if (header_bytes + capacity_ > static_cast<size_t>(view_.size)) throw py::value_error("no ring");
  }

  // Appends a record stamped with the clocks of now and the next seq: 1; 2 where the ring is more than half full. 0:
  // nothing was changed, and Python has to: it is in the middle of a record, a value is no number, there is no room, seq
  // has to jump over a dropped record, the file is full, the ring was let go.
  int write(const Format& format, const py::dict& fields) {
    if (!base_ || is_busy || words_[kClosed] || words_[kDropped] != words_[kSkipped]) return 0;
    const uint64_t seq = words_[kNextSeq], head = words_[kHead];
    const uint64_t tail = __atomic_load_n(&words_[kTail], __ATOMIC_ACQUIRE);
    Stamps stamps{static_cast<int64_t>(seq), now_ns(CLOCK_REALTIME), now_ns(CLOCK_MONOTONIC)};
    char line[4096 + 16];
    const size_t size = format.line(line, fields, stamps);
    if (!size || head + size - tail > capacity_ || head + size >= rotate_at) return 0;
    const size_t begin = head % capacity_, room = capacity_ - begin;
    std::memcpy(data_ + begin, line, size < room ? size : room);
    if (size > room) std::memcpy(data_, line + room, size - room);
    // The line first, then what shows it: a process that is killed in between has written nothing.
    __atomic_store_n(&words_[kHead], head + size, __ATOMIC_RELEASE);
    __atomic_store_n(&words_[kNextSeq], seq + 1, __ATOMIC_RELEASE);
    return head + size - tail > capacity_ / 2 ? 2 : 1;
  }

  bool is_busy = false;           // Python is in the middle of a record, on whatever thread
  uint64_t rotate_at = UINT64_MAX;  // another file follows where this one would end there

  // Lets the map go, so that it can be closed.
  void release() {
    base_ = nullptr;
    view_ = py::buffer_info();
  }

 private:
  static constexpr size_t kCapacity = 1, kHead = 2, kDropped = 3, kSkipped = 5, kNextSeq = 6, kClosed = 7, kTail = 8;
  py::buffer_info view_;
  char* base_;
  uint64_t* words_;
  char* data_;
  uint64_t capacity_;
};

}  // namespace

PYBIND11_MODULE(_ring, module) {
  py::class_<Format>(module, "Format")
      .def(py::init<std::vector<std::string>, std::vector<int>>())
      .def("line", [](const Format& self, const py::dict& fields, int64_t seq, int64_t wall_ns, int64_t mono_ns) {
        char line[4096 + 16];
        return py::bytes(line, self.line(line, fields, Stamps{seq, wall_ns, mono_ns}));
      });
  py::class_<Appender>(module, "Appender")
      .def(py::init<py::buffer, size_t>())
      .def("write", &Appender::write)
      .def_readwrite("is_busy", &Appender::is_busy)
      .def_readwrite("rotate_at", &Appender::rotate_at)
      .def("release", &Appender::release);
}
