// The host's part of an exchange of rows between a cache in device memory and the tables below it: two functions that the
// device's driver calls in the order of a stream. ett/trainer/embedding/row_ferry.py lays out what they read.
//
// told: number of rows that come, and that leave; how many of each have room here; then the rows that come, [room_in],
// and those that leave, [room_out].

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "ett/_thread_team.hpp"

namespace py = pybind11;

namespace {

using Address = uintptr_t;

constexpr int64_t kAhead = 24;              // rows under way
constexpr int64_t kRowsPerThread = 1 << 9;  // fewer are not worth waking a thread for
constexpr int64_t kHeader = 4;

struct Table {
  char* below;
  char* coming;
  char* leaving;
  int64_t row_bytes;
};

struct Ferry {
  std::vector<Table> tables;
  const int64_t* told;
  ett::ThreadTeam team;
  std::mutex one_task;                         // the driver may call for two streams at once
  std::atomic<int64_t> recent_in, recent_out;  // the most that came and left, forgotten by a sixteenth each time

  Ferry(const int64_t* told, int64_t capacity, size_t threads)
      : told(told), team(threads), recent_in(capacity), recent_out(capacity) {}

  template <class Copy>
  void copy(const int64_t* rows, int64_t count, const Copy& copy_part) {
    int64_t parts = std::max<int64_t>(1, std::min(static_cast<int64_t>(team.size()), count / kRowsPerThread));
    std::lock_guard lock(one_task);
    team.each(static_cast<size_t>(parts), [&](size_t number) {
      auto part = static_cast<int64_t>(number);
      for (const Table& table : tables) copy_part(table, rows, count * part / parts, count * (part + 1) / parts);
    });
  }
};

void note(std::atomic<int64_t>& recent, int64_t count) {
  int64_t before = recent.load(std::memory_order_relaxed);
  recent.store(std::max(count, before - before / 16), std::memory_order_relaxed);
}

void prefetch(const char* row, int64_t bytes) {
  for (int64_t at = 0; at < std::min<int64_t>(bytes, 512); at += 64) __builtin_prefetch(row + at);
}

void bring(void* address) {  // the rows that come, side by side
  auto& ferry = *static_cast<Ferry*>(address);
  const int64_t count = std::min(ferry.told[0], ferry.told[2]);
  note(ferry.recent_in, ferry.told[0]);
  ferry.copy(ferry.told + kHeader, count, [](const Table& table, const int64_t* rows, int64_t first, int64_t last) {
    const size_t bytes = static_cast<size_t>(table.row_bytes);
    for (int64_t i = first; i < last; ++i) {
      if (i + kAhead < last) prefetch(table.below + rows[i + kAhead] * table.row_bytes, table.row_bytes);
      std::memcpy(table.coming + i * table.row_bytes, table.below + rows[i] * table.row_bytes, bytes);
    }
  });
}

void put_down(void* address) {  // the rows that leave, each at its place
  auto& ferry = *static_cast<Ferry*>(address);
  const int64_t count = std::min(ferry.told[1], ferry.told[3]);
  note(ferry.recent_out, ferry.told[1]);
  const int64_t* rows = ferry.told + kHeader + ferry.told[2];
  ferry.copy(rows, count, [](const Table& table, const int64_t* rows, int64_t first, int64_t last) {
    const size_t bytes = static_cast<size_t>(table.row_bytes);
    for (int64_t i = first; i < last; ++i) {
      if (i + kAhead < last) prefetch(table.below + rows[i + kAhead] * table.row_bytes, table.row_bytes);
      std::memcpy(table.below + rows[i] * table.row_bytes, table.leaving + i * table.row_bytes, bytes);
    }
  });
}

Ferry& ferry_at(Address handle) { return *reinterpret_cast<Ferry*>(handle); }

// tables: (below, coming, leaving, bytes of a row) each; capacity: rows that there is room for.
Address make(const std::vector<std::tuple<Address, Address, Address, int64_t>>& tables, Address told, int64_t capacity,
             size_t threads) {
  auto* made = new Ferry(reinterpret_cast<const int64_t*>(told), capacity, threads);
  auto at = [](Address address) { return reinterpret_cast<char*>(address); };
  for (const auto& [below, coming, leaving, row_bytes] : tables)
    made->tables.push_back({at(below), at(coming), at(leaving), row_bytes});
  return reinterpret_cast<Address>(made);
}

}  // namespace

PYBIND11_MODULE(_row_ferry, m) {
  m.def("make", &make);
  m.def("end", [](Address handle) { delete &ferry_at(handle); });
  m.def("recent", [](Address handle) {
    return std::make_pair(ferry_at(handle).recent_in.load(), ferry_at(handle).recent_out.load());
  });
  m.def("bring", [](Address handle) { bring(&ferry_at(handle)); }, py::call_guard<py::gil_scoped_release>());
  m.def("put_down", [](Address handle) { put_down(&ferry_at(handle)); }, py::call_guard<py::gil_scoped_release>());
  m.attr("BRING") = reinterpret_cast<Address>(&bring);
  m.attr("PUT_DOWN") = reinterpret_cast<Address>(&put_down);
}
