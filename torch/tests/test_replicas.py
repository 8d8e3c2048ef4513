"""The device as several replicas: data of each, collectives inside of executables, training;
compared with expected results.

Each group of cases has a process of its own, because opening the engine fixes the number of
replicas.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
import unittest

from ranks import END, PRELOADED

# How long a case may take, in seconds.
LIMIT = 240


def work(count, pipe, environment):
    os.environ.update(environment)
    import replica_cases
    import torch

    torch.set_num_threads(1)
    # A process that was forked from one with the package has not read the environment.
    torch.fuseline.configure(replicas=count, interpret_cold=False)
    while (task := pipe.recv()) != END:
        name, arguments = task
        try:
            torch.manual_seed(0)
            pipe.send((True, getattr(replica_cases, name)(count, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


class Replicas(unittest.TestCase):
    """Cases for one process with this many replicas, run one after the other."""

    count, environment = 2, {}

    @classmethod
    def setUpClass(cls):
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(PRELOADED)
        cls.pipe, there = server.Pipe()
        cls.process = server.Process(target=work, args=(cls.count, there, cls.environment), daemon=True)
        cls.process.start()
        there.close()

    @classmethod
    def tearDownClass(cls):
        cls.stop()

    @classmethod
    def stop(cls):
        try:
            cls.pipe.send(END)
        except OSError:
            pass
        cls.process.join(10)
        cls.process.kill()
        cls.process.join()

    def run_there(self, name, *arguments):
        if not self.process.is_alive():
            self.setUpClass()
        self.pipe.send((name, arguments))
        try:
            is_well, result = self.pipe.recv() if self.pipe.poll(LIMIT) else (False, f"no answer after {LIMIT} s")
        except (EOFError, ConnectionError):
            is_well, result = False, "the process is gone"
        if not is_well:
            # Do not let a failed case affect the others.
            self.stop()
            self.fail(f"{name} with {self.count} replicas: {result}")
        return result


class TwoReplicas(Replicas):
    def test_data_of_each_replica(self):
        self.run_there("shards")

    def test_gradients_of_parts(self):
        self.run_there("gradients")

    def test_what_is_moved_arrives_in_every_type(self):
        self.run_there("moves")

    def test_what_is_reduced_is_right_in_every_type(self):
        self.run_there("reductions")

    def test_views_lists_and_objects(self):
        self.run_there("shapes_and_views")

    def test_functional_collectives_and_graphs(self):
        self.run_there("functional")

    def test_a_collective_is_in_the_region_of_its_neighbours(self):
        self.run_there("in_the_region")

    def test_data_parallel_training_is_that_of_one_process(self):
        self.run_there("ddp")

    def test_data_parallel_training_op_by_op(self):
        self.run_there("ddp_in_modes")

    def test_a_steady_step_is_one_executable(self):
        self.run_there("ddp_of_images")

    def test_what_would_be_wrong_is_refused(self):
        self.run_there("refusals")

    def test_beside_groups_of_processes(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_there("beside_a_world", f"{folder}/store")


class FourReplicas(Replicas):
    count = 4

    def test_data_and_collectives(self):
        for name in ("shards", "gradients", "moves", "shapes_and_views", "in_the_region"):
            self.run_there(name)

    def test_data_parallel_training_is_that_of_one_process(self):
        self.run_there("ddp")
        self.run_there("ddp_of_images")


class OneReplica(Replicas):
    """The same program runs with one replica."""

    count = 1

    def test_data_collectives_and_training(self):
        for name in ("shards", "gradients", "moves", "ddp", "ddp_of_images"):
            self.run_there(name)


class Interpreted(Replicas):
    environment = {"FUSELINE_TORCH_DEVICE": "reference"}

    def test_data_collectives_and_training(self):
        for name in ("shards", "gradients", "moves", "reductions", "ddp"):
            self.run_there(name)


class Environment(unittest.TestCase):
    def test_the_number_is_read_from_it(self):
        source = "import torch; print(torch.fuseline.replica_count(), torch.fuseline.unshard(torch.fuseline.replica_index()[None]).tolist())"
        environment = {**os.environ, "FUSELINE_TORCH_REPLICAS": "3"}
        done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.stdout, "3 [0, 1, 2]\n", done.stderr)


if __name__ == "__main__":
    unittest.main()
