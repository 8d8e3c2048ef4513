/*
 * Measures the CPU time that a front end needs to record an op, with handles and releases, without
 * types.
 *
 *   cargo xtask capi --prefix out
 *   cc -O2 -Iout/include capi/examples/rate.c -Lout/lib -lfuseline -Wl,-rpath,$PWD/out/lib -o rate
 *   ./rate [reference | path of a PJRT plugin]
 */
#include <fuseline.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void check(fuseline_error *error) {
  if (!error) return;
  fprintf(stderr, "rate: %s\n", fuseline_error_message(error));
  exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}

#define OPS 50
#define STEPS 400

int main(int argc, char **argv) {
  fuseline_config *config;
  fuseline_session *session;
  fuseline_stream stream;
  fuseline_value x, one;
  check(fuseline_config_new(&config));
  if (argc > 1) check(fuseline_config_set(config, "device", argv[1]));
  check(fuseline_session_open(config, &session));
  fuseline_config_free(config);
  check(fuseline_stream_open(session, &stream));
  const float zero = 0, step_size = 1;
  fuseline_tensor data = {.type = {.dtype = FUSELINE_F32, .rank = 1, .dims = {1}}, .data = (const uint8_t *)&zero, .size = sizeof zero};
  check(fuseline_upload(session, stream, &data, &x));
  data.data = (const uint8_t *)&step_size;
  check(fuseline_upload(session, stream, &data, &one));

  fuseline_call call = {.struct_size = sizeof call, .num_operands = 2};
  check(fuseline_op_find("add", &call.op));
  check(fuseline_site_of("rate.c:loop", &call.site));
  double times[STEPS];
  for (int step = 0; step < STEPS; step++) {
    const double start = now();
    for (int i = 0; i < OPS; i++) {
      const fuseline_value operands[] = {x, one};
      fuseline_value sum;
      call.operands = operands;
      check(fuseline_record(session, stream, &call, &sum, NULL, 1, NULL));
      check(fuseline_release(session, x));
      x = sum;
    }
    times[step] = (now() - start) / OPS;
    check(fuseline_wait(session, x, UINT64_MAX));
  }
  double best = times[0], sum = 0;
  for (int step = STEPS / 2; step < STEPS; step++) {
    sum += times[step];
    if (times[step] < best) best = times[step];
  }
  float total;
  check(fuseline_read(session, x, (uint8_t *)&total, sizeof total));
  if (total != OPS * STEPS) {
    fprintf(stderr, "rate: %g, not %d\n", total, OPS * STEPS);
    return 1;
  }
  printf("an op: %.0f ns in the mean of the last %d steps, %.0f ns in the best; the first step %.0f ns\n", sum / (STEPS / 2), STEPS / 2, best, times[0]);
  printf("the sum of %d ones: %g\n", OPS * STEPS, total);
  check(fuseline_release(session, x));
  check(fuseline_release(session, one));
  check(fuseline_stream_close(session, stream));
  fuseline_session_close(session);
  return 0;
}
