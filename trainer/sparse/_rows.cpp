// Rows of float32 tables on the host: sums of rows (pooling forward, gradients of duplicates backward), updates, and the
// order in which duplicates stand. ett/trainer/sparse/numpy_row_kernels.py is the reference; the bits are the same, at
// any number of threads and on any processor:
//
// - a sum starts at +0 and adds its summands in the order of the list, each operation rounded by itself (this file is
//   compiled without contraction to fused multiply-add);
// - a mean of squares has sixteen sums, of the columns with the same number modulo 16, added in halves: 8, 4, 2, 1;
// - threads divide segments among themselves, never a sum.
//
// Pointers come as integers and are not checked here: ett/trainer/sparse/row_kernels.py does that. No call holds the GIL.

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "ett/_processors.hpp"

namespace py = pybind11;

#define INLINE inline __attribute__((always_inline))

namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kAhead = 24;                   // rows under way; from 16 to 48 it makes no difference with rows of 256 bytes
constexpr int64_t kLinesAhead = 8;               // of each of them: the rest of a long row the processor fetches itself
constexpr int64_t kScratchBytes = 1 << 16;       // gradients summed before their rows are updated: stays in L2
constexpr int64_t kElementsPerThread = 1 << 18;  // fewer are not worth starting a thread for

using Address = uintptr_t;
typedef float Vector __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

// Entry s of S is the sum of weights[j] * flat[rows[j] * stride + 0 .. dim) for j in [starts[s], starts[s + 1]).
struct Sums {
  const float* flat;
  int64_t stride;
  const int64_t* rows;
  const int64_t* starts;
  const float* weights;  // may be null: all one, and nothing is multiplied
  int64_t count, dim;

  const float* summand(int64_t j) const { return flat + rows[j] * stride; }
};

template <class Work>
void in_threads(int64_t num_threads, const Work& work) {  // work(thread) must not throw
  std::vector<std::thread> threads;
  for (int64_t t = 1; t < num_threads; ++t) threads.emplace_back(work, t);
  work(0);
  for (auto& thread : threads) thread.join();
}

int64_t threads_for(int64_t threads, int64_t elements) {
  return std::max<int64_t>(1, std::min(threads, elements / kElementsPerThread + 1));
}

// The first segment of part t of `parts`, which have about as many summands each.
int64_t part_begin(const Sums& sums, int64_t t, int64_t parts) {
  if (t == parts) return sums.count;
  int64_t wanted = sums.starts[0] + (sums.starts[sums.count] - sums.starts[0]) * t / parts;
  return t == 0 ? 0 : std::lower_bound(sums.starts, sums.starts + sums.count, wanted) - sums.starts;
}

INLINE void prefetch_row(const float* row, int64_t dim) {
  int64_t lines = std::min(kLinesAhead, (dim * 4 + 63) / 64);
  for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(row + line * kLanes);
}

template <int kVectors, bool kWeighted>
INLINE void sum_columns(const Sums& sums, int64_t begin, int64_t end, int64_t last, int64_t column, float* out) {
  Vector total[kVectors];
  for (int v = 0; v < kVectors; ++v) total[v] = Vector{};
  for (int64_t j = begin; j < end; ++j) {
    if (column == 0 && j + kAhead < last) prefetch_row(sums.summand(j + kAhead), sums.dim);
    const float* row = sums.summand(j) + column;
    for (int v = 0; v < kVectors; ++v) {
      Vector part = *reinterpret_cast<const Vector*>(row + v * kLanes);
      total[v] += kWeighted ? part * sums.weights[j] : part;
    }
  }
  for (int v = 0; v < kVectors; ++v) *reinterpret_cast<Vector*>(out + column + v * kLanes) = total[v];
}

template <bool kWeighted>
INLINE void sum_segment(const Sums& sums, int64_t begin, int64_t end, int64_t last, float* out) {
  int64_t column = 0;
  for (; column + 8 * kLanes <= sums.dim; column += 8 * kLanes)
    sum_columns<8, kWeighted>(sums, begin, end, last, column, out);
  for (; column + 4 * kLanes <= sums.dim; column += 4 * kLanes)
    sum_columns<4, kWeighted>(sums, begin, end, last, column, out);
  for (; column + kLanes <= sums.dim; column += kLanes) sum_columns<1, kWeighted>(sums, begin, end, last, column, out);
  if (column == sums.dim) return;
  for (int64_t c = column; c < sums.dim; ++c) out[c] = 0.0f;
  for (int64_t j = begin; j < end; ++j) {
    const float* row = sums.summand(j);
    if (column == 0 && j + kAhead < last) prefetch_row(sums.summand(j + kAhead), sums.dim);
    for (int64_t c = column; c < sums.dim; ++c) out[c] += kWeighted ? row[c] * sums.weights[j] : row[c];
  }
}

INLINE void sum_segments(const Sums& sums, int64_t first, int64_t last, float* out, int64_t out_stride) {
  int64_t end = sums.starts[last];
  if (sums.weights)
    for (int64_t s = first; s < last; ++s, out += out_stride)
      sum_segment<true>(sums, sums.starts[s], sums.starts[s + 1], end, out);
  else
    for (int64_t s = first; s < last; ++s, out += out_stride)
      sum_segment<false>(sums, sums.starts[s], sums.starts[s + 1], end, out);
}

FOR_EACH_PROCESSOR void sum_part(const Sums& sums, int64_t first, int64_t last, float* out, int64_t stride, bool mean) {
  sum_segments(sums, first, last, out, stride);
  if (!mean) return;
  for (int64_t s = first; s < last; ++s, out += stride) {
    float length = static_cast<float>(sums.starts[s + 1] - sums.starts[s]);
    if (length > 1.0f)
      for (int64_t c = 0; c < sums.dim; ++c) out[c] /= length;
  }
}

Sums sums_of(const py::tuple& parts) {  // flat, stride, rows, starts, weights or 0, count, dim
  auto number = [&](size_t i) { return parts[i].cast<int64_t>(); };
  auto address = [&](size_t i) { return parts[i].cast<Address>(); };
  return {reinterpret_cast<const float*>(address(0)),   number(1),
          reinterpret_cast<const int64_t*>(address(2)), reinterpret_cast<const int64_t*>(address(3)),
          reinterpret_cast<const float*>(address(4)),   number(5),
          number(6)};
}

void sum_rows(const py::tuple& parts, Address out_address, int64_t out_stride, bool mean, int64_t threads) {
  Sums sums = sums_of(parts);
  float* out = reinterpret_cast<float*>(out_address);
  py::gil_scoped_release release;
  threads = threads_for(threads, (sums.starts[sums.count] - sums.starts[0]) * sums.dim);
  in_threads(threads, [&](int64_t t) {
    int64_t first = part_begin(sums, t, threads), last = part_begin(sums, t + 1, threads);
    sum_part(sums, first, last, out + first * out_stride, out_stride, mean);
  });
}

// How to update a row; `rows` and states are those of a whole table.
struct Sgd {
  float learning_rate;
  INLINE void row(float* weights, const float* grads, int64_t, int64_t dim, int64_t) const {
    for (int64_t c = 0; c < dim; ++c) weights[c] -= learning_rate * grads[c];
  }
  void prefetch(int64_t, int64_t) const {}
};

struct Adagrad {
  float learning_rate, eps;
  float* total;
  INLINE void row(float* weights, const float* grads, int64_t at, int64_t dim, int64_t) const {
    float* sum = total + at * dim;
    for (int64_t c = 0; c < dim; ++c) {
      sum[c] += grads[c] * grads[c];
      weights[c] -= (learning_rate * grads[c]) / (std::sqrt(sum[c]) + eps);
    }
  }
  INLINE void prefetch(int64_t at, int64_t dim) const { prefetch_row(total + at * dim, dim); }
};

INLINE float sum_in_halves(const Vector& lanes) {
  typedef int32_t Places __attribute__((vector_size(4 * kLanes)));
  Vector sum = lanes;
  sum += __builtin_shuffle(sum, Places{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
  sum += __builtin_shuffle(sum, Places{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
  sum += __builtin_shuffle(sum, Places{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
  sum += __builtin_shuffle(sum, Places{1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14});
  return sum[0];
}

struct RowWiseAdagrad {
  float learning_rate, eps;
  float* total;
  INLINE void row(float* weights, const float* grads, int64_t at, int64_t dim, int64_t) const {
    Vector lanes{};
    int64_t c = 0;
    for (; c + kLanes <= dim; c += kLanes) {
      Vector g = *reinterpret_cast<const Vector*>(grads + c);
      lanes += g * g;
    }
    if (c < dim) {
      float rest[kLanes] = {};
      std::memcpy(rest, grads + c, static_cast<size_t>(dim - c) * sizeof(float));
      Vector g = *reinterpret_cast<const Vector*>(rest);
      lanes += g * g;
    }
    total[at] += sum_in_halves(lanes) / static_cast<float>(dim);
    float rate = learning_rate / (std::sqrt(total[at]) + eps);
    for (c = 0; c < dim; ++c) weights[c] -= rate * grads[c];
  }
  INLINE void prefetch(int64_t at, int64_t) const { __builtin_prefetch(total + at, 1); }
};

struct Adam {
  float beta1_rest, beta2, beta2_rest, eps;  // rest: 1 - beta
  float *mean, *square;
  const float *step_size, *root_correction;  // of entry s of the update, not of a row of the table
  INLINE void row(float* weights, const float* grads, int64_t at, int64_t dim, int64_t s) const {
    float *m = mean + at * dim, *v = square + at * dim;
    float size = step_size[s], root = root_correction[s];
    for (int64_t c = 0; c < dim; ++c) {
      m[c] += beta1_rest * (grads[c] - m[c]);
      v[c] = beta2 * v[c] + (beta2_rest * grads[c]) * grads[c];
      weights[c] -= (size * m[c]) / (std::sqrt(v[c]) / root + eps);
    }
  }
  INLINE void prefetch(int64_t at, int64_t dim) const {
    prefetch_row(mean + at * dim, dim);
    prefetch_row(square + at * dim, dim);
  }
};

struct Table {
  float* weights;
  const int64_t* rows;  // the row of each entry, distinct; may be null: entry s is row s
  int64_t row(int64_t s) const { return rows ? rows[s] : s; }
};

template <class Rule>
INLINE void update_part(const Table& table, const Sums& grads, const Rule& rule, int64_t first, int64_t last) {
  const int64_t dim = grads.dim;
  const int64_t block = std::max<int64_t>(1, kScratchBytes / 4 / std::max<int64_t>(1, dim));
  std::vector<float> scratch(static_cast<size_t>(block * dim));
  for (; first < last; first += block) {
    int64_t end = std::min(last, first + block);
    sum_segments(grads, first, end, scratch.data(), dim);
    for (int64_t s = first; s < end; ++s) {
      if (s + kAhead < end) {
        prefetch_row(table.weights + table.row(s + kAhead) * dim, dim);
        rule.prefetch(table.row(s + kAhead), dim);
      }
      rule.row(table.weights + table.row(s) * dim, scratch.data() + (s - first) * dim, table.row(s), dim, s);
    }
  }
}

// Multiversioned functions cannot be templates.
FOR_EACH_PROCESSOR void part_of(const Table& t, const Sums& g, const Sgd& rule, int64_t first, int64_t last) {
  update_part(t, g, rule, first, last);
}
FOR_EACH_PROCESSOR void part_of(const Table& t, const Sums& g, const Adagrad& rule, int64_t first, int64_t last) {
  update_part(t, g, rule, first, last);
}
FOR_EACH_PROCESSOR void part_of(const Table& t, const Sums& g, const RowWiseAdagrad& rule, int64_t first, int64_t last) {
  update_part(t, g, rule, first, last);
}
FOR_EACH_PROCESSOR void part_of(const Table& t, const Sums& g, const Adam& rule, int64_t first, int64_t last) {
  update_part(t, g, rule, first, last);
}

template <class Rule>
void update(Address weights, Address rows, const py::tuple& parts, const Rule& rule, int64_t threads) {
  Sums grads = sums_of(parts);
  Table table{reinterpret_cast<float*>(weights), reinterpret_cast<const int64_t*>(rows)};
  py::gil_scoped_release release;
  threads = threads_for(threads, (grads.starts[grads.count] - grads.starts[0] + grads.count) * grads.dim);
  in_threads(threads, [&](int64_t t) {
    part_of(table, grads, rule, part_begin(grads, t, threads), part_begin(grads, t + 1, threads));
  });
}

float* floats(Address address) { return reinterpret_cast<float*>(address); }

FOR_EACH_PROCESSOR void add_part(float* out, int64_t stride, const int64_t* rows, const float* parts, int64_t dim,
                                 int64_t first, int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    float* row = out + rows[i] * stride;
    for (int64_t c = 0; c < dim; ++c) row[c] += parts[i * dim + c];
  }
}

// out[rows[i]] += parts[i]; rows are distinct.
void add_rows(Address out, int64_t stride, Address rows, Address parts, int64_t count, int64_t dim, int64_t threads) {
  py::gil_scoped_release release;
  threads = threads_for(threads, count * dim);
  in_threads(threads, [&](int64_t t) {
    add_part(floats(out), stride, reinterpret_cast<const int64_t*>(rows), floats(parts), dim, count * t / threads,
             count * (t + 1) / threads);
  });
}

// Copy n rows of dim floats from `from` to `to`, each at its place: row i at places[i] * stride, or at i * stride.
void copy_rows(Address from, int64_t from_stride, Address from_places, Address to, int64_t to_stride, Address to_places,
               int64_t count, int64_t dim, int64_t threads) {
  auto place = [](const int64_t* places, int64_t i) { return places ? places[i] : i; };
  const auto* read = reinterpret_cast<const int64_t*>(from_places);
  const auto* write = reinterpret_cast<const int64_t*>(to_places);
  py::gil_scoped_release release;
  threads = threads_for(threads, count * dim);
  in_threads(threads, [&](int64_t t) {
    int64_t last = count * (t + 1) / threads;
    for (int64_t i = count * t / threads; i < last; ++i) {
      if (i + kAhead < last) prefetch_row(floats(from) + place(read, i + kAhead) * from_stride, dim);
      std::memcpy(floats(to) + place(write, i) * to_stride, floats(from) + place(read, i) * from_stride,
                  static_cast<size_t>(dim) * sizeof(float));
    }
  });
}

struct Wide {
  uint64_t key;
  int64_t position;
};

INLINE uint64_t key_of(uint64_t packed) { return packed >> 32; }
INLINE uint64_t key_of(const Wide& wide) { return wide.key; }
INLINE int64_t position_of(uint64_t packed) { return static_cast<int64_t>(packed & 0xFFFFFFFFull); }
INLINE int64_t position_of(const Wide& wide) { return wide.position; }

template <class Element>
int64_t sort_and_cut(std::vector<Element>& elements, uint64_t greatest, int64_t* order, int64_t* starts) {
  constexpr int kBits = 11;
  std::vector<Element> other(elements.size());
  for (int shift = 0; shift < 64 && (greatest >> shift); shift += kBits) {
    size_t ends[1 << kBits] = {};
    auto digit = [&](const Element& e) { return (key_of(e) >> shift) & ((1u << kBits) - 1); };
    for (const Element& e : elements) ++ends[digit(e)];
    size_t begin = 0;
    for (size_t& end : ends) begin += std::exchange(end, begin);
    for (const Element& e : elements) other[ends[digit(e)]++] = e;
    elements.swap(other);
  }
  int64_t count = 0, n = static_cast<int64_t>(elements.size());
  for (int64_t i = 0; i < n; ++i) {
    order[i] = position_of(elements[i]);
    if (i == 0 || key_of(elements[i]) != key_of(elements[i - 1])) starts[count++] = i;
  }
  starts[count] = n;
  return count;
}

// Positions by (id, position) into order [n]; where each distinct id begins, and n, into starts [n + 1]. Returns the
// number of distinct ids.
int64_t group_ids(Address ids_address, int64_t n, Address order_address, Address starts_address) {
  const auto* ids = reinterpret_cast<const int64_t*>(ids_address);
  auto* order = reinterpret_cast<int64_t*>(order_address);
  auto* starts = reinterpret_cast<int64_t*>(starts_address);
  py::gil_scoped_release release;
  starts[0] = 0;
  if (!n) return 0;
  auto [least, most] = std::minmax_element(ids, ids + n);
  uint64_t low = static_cast<uint64_t>(*least), greatest = static_cast<uint64_t>(*most) - low;
  if (greatest >> 32 || n > int64_t{1} << 32) {
    std::vector<Wide> wide(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) wide[i] = {static_cast<uint64_t>(ids[i]) - low, i};
    return sort_and_cut(wide, greatest, order, starts);
  }
  std::vector<uint64_t> packed(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) packed[i] = (static_cast<uint64_t>(ids[i]) - low) << 32 | static_cast<uint64_t>(i);
  return sort_and_cut(packed, greatest, order, starts);
}

}  // namespace

PYBIND11_MODULE(_rows, m) {
  m.def("sum_rows", &sum_rows);
  m.def("add_rows", &add_rows);
  m.def("copy_rows", &copy_rows);
  m.def("group_ids", &group_ids);
  m.def("sgd", [](Address weights, Address rows, const py::tuple& grads, float rate, int64_t threads) {
    update(weights, rows, grads, Sgd{rate}, threads);
  });
  m.def("adagrad", [](Address weights, Address rows, const py::tuple& grads, float rate, float eps, Address total,
                      int64_t threads) { update(weights, rows, grads, Adagrad{rate, eps, floats(total)}, threads); });
  m.def("rowwise_adagrad",
        [](Address weights, Address rows, const py::tuple& grads, float rate, float eps, Address total,
           int64_t threads) { update(weights, rows, grads, RowWiseAdagrad{rate, eps, floats(total)}, threads); });
  m.def("adam", [](Address weights, Address rows, const py::tuple& grads, float beta1_rest, float beta2,
                   float beta2_rest, float eps, Address mean, Address square, Address step_size, Address root_correction,
                   int64_t threads) {
    Adam rule{beta1_rest, beta2, beta2_rest, eps, floats(mean), floats(square), floats(step_size),
              floats(root_correction)};
    update(weights, rows, grads, rule, threads);
  });
}
