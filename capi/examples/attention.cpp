// Attention over a few positions, in C++: op by op, as the kernels of a backend record it, and one
// region for the device.
//
//   cargo xtask capi --prefix out c++ -std=c++17 -Iout/include capi/examples/attention.cpp
//   -Lout/lib -lfuseline -Wl,-rpath,$PWD/out/lib -o attention ./attention [reference | path of a
//   PJRT plugin]
#include <cmath>
#include <cstdio>
#include <fuseline.hpp>

using namespace fuseline;

namespace {

constexpr std::uint64_t kRows = 4, kWidth = 8;
constexpr std::int64_t kRowsI = kRows, kWidthI = kWidth;

/// The product of two matrices over these dimensions.
Op product(std::int64_t lhs, std::int64_t rhs) {
  AttrList dims, all;
  dims.integers("lhs_batching_dimensions", {}).integers("rhs_batching_dimensions", {});
  dims.integers("lhs_contracting_dimensions", {lhs}).integers("rhs_contracting_dimensions", {rhs});
  all.attrs("dot_dimension_numbers", std::move(dims)).dtype("dtype", FUSELINE_F32);
  return Op("dot_general", all);
}

Op broadcast(std::vector<std::int64_t> shape, std::vector<std::int64_t> dims) {
  AttrList all;
  all.integers("shape", std::move(shape)).integers("broadcast_dimensions", std::move(dims));
  return Op("broadcast_in_dim", all);
}

/// Pseudorandom numbers.
std::vector<float> data(unsigned seed) {
  std::vector<float> out(kRows * kWidth);
  for (auto &x : out) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(seed >> 8) / (1 << 23) - 1;
  }
  return out;
}

}  // namespace

int main(int argc, char **argv) try {
  Config config;
  if (argc > 1) config.set("device", argv[1]);
  const Session session(config);

  const std::vector<float> q = data(1), k = data(2), v = data(3);
  const Value query = session.upload(q, {kRows, kWidth}), key = session.upload(k, {kRows, kWidth}),
              value = session.upload(v, {kRows, kWidth});

  const Op scores = product(1, 1), mix = product(1, 0), everywhere = broadcast({kRowsI, kRowsI}, {});
  const Op ones_of = broadcast({kRowsI, kRowsI}, {}), divide("divide"), multiply("multiply"), exponential("exponential");

  const fuseline_site *here = site("attention.cpp:softmax");
  const Value scale = session.record(everywhere, {session.scalar(FUSELINE_F32, 1 / std::sqrt(double(kWidth)))});
  const Value raw = session.record(multiply, {session.record(scores, {query, key}), scale});
  const Value weights = session.record(exponential, {raw}, here);
  // The sum of each row, as a product with ones.
  const Value ones = session.record(ones_of, {session.scalar(FUSELINE_F32, 1)});
  const Value sums = session.record(mix, {weights, ones}, here);
  const Value out = session.record(mix, {session.record(divide, {weights, sums}, here), value}, here);
  const std::vector<float> found = out.read<float>();

  // The same on the host.
  float worst = 0;
  for (std::uint64_t row = 0; row < kRows; row++) {
    double weight[kRows], sum = 0;
    for (std::uint64_t other = 0; other < kRows; other++) {
      double score = 0;
      for (std::uint64_t i = 0; i < kWidth; i++) score += double(q[row * kWidth + i]) * k[other * kWidth + i];
      sum += weight[other] = std::exp(score / std::sqrt(double(kWidth)));
    }
    for (std::uint64_t i = 0; i < kWidth; i++) {
      double wanted = 0;
      for (std::uint64_t other = 0; other < kRows; other++) wanted += weight[other] / sum * v[other * kWidth + i];
      worst = std::fmax(worst, std::fabs(static_cast<float>(wanted) - found[row * kWidth + i]));
    }
  }
  std::printf("%llu ops, %llu regions\n", static_cast<unsigned long long>(session.counter("ops")),
              static_cast<unsigned long long>(session.counter("regions")));
  if (!(worst < 1e-5f)) {
    std::printf("the largest difference is %g\n", worst);
    return 1;
  }

  // An error names the op and the call site.
  try {
    session.record(Op("add"), {query, weights}, here);
    return 1;
  } catch (const Error &error) {
    if (error.code() != FUSELINE_BAD_OP || error.op() != "add" || error.site() != "attention.cpp:softmax") return 1;
    std::printf("refused as it should be: %s\n", error.what());
  }

  // Values can be copied, moved and written in place.
  Value copy = query, moved = std::move(copy);
  moved.replace(session.record(Op("negate"), {moved}));
  if (moved.version() != 1 || query.read<float>()[0] != -q[0]) return 1;
  int told = 0;
  moved.on_ready([&](const fuseline_error *error) { told = error ? -1 : 1; });
  session.synchronize();
  moved.wait();
  std::printf("all right\n");
  return told == 1 ? 0 : 1;
} catch (const std::exception &error) {
  std::fprintf(stderr, "attention: %s\n", error.what());
  return 1;
}
