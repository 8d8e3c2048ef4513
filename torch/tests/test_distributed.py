"""torch.distributed on the device: collectives, training and checkpoints with two and four
processes give the results of one process."""

import tempfile
import unittest

from ranks import LEAVE, PEERS, Ranks


class Group(unittest.TestCase):
    """Cases for the ranks of one group, run one after the other."""

    world = 2

    @classmethod
    def setUpClass(cls):
        cls.ranks = Ranks(cls.world)

    @classmethod
    def tearDownClass(cls):
        cls.ranks.close()

    def run_on_all(self, name, *arguments, **how):
        if self.ranks.is_broken:
            # Do not let a failed case affect the others.
            self.ranks.close()
            type(self).ranks = Ranks(self.world)
        return self.ranks.run(name, *arguments, **how)


class TwoRanks(Group):
    def test_what_is_moved_arrives_in_every_type(self):
        self.run_on_all("moves")

    def test_what_is_reduced_is_right_in_every_type(self):
        self.run_on_all("reductions")

    def test_views_lists_objects_and_functional_collectives(self):
        self.run_on_all("shapes_and_views")

    def test_sends_and_receives_in_any_order(self):
        self.run_on_all("between_two")

    def test_a_collective_does_not_hold_up_the_program(self):
        self.run_on_all("in_the_stream")

    def test_ranks_whose_programs_differ_do_not_disturb_each_other(self):
        (_, first), (_, other) = self.run_on_all("another_program")
        # Rank 0 sees new sizes in every step; rank 1 repeats its steps.
        self.assertGreater(first["later"], 0)
        self.assertEqual(other["later"], 0)

    def test_data_parallel_training_is_that_of_one_process(self):
        self.run_on_all("ddp")

    def test_sharded_training_is_that_of_one_process(self):
        self.run_on_all("fsdp")

    def test_tensors_over_a_mesh(self):
        self.run_on_all("tensors_over_a_mesh")

    def test_tensor_parallel_training_is_that_of_one_process(self):
        self.run_on_all("tensor_parallel")

    def test_a_sharded_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_on_all("checkpoint", folder)

    def test_when_a_rank_cannot_give_its_operand_the_others_hear_of_it(self):
        with Ranks(2) as ranks:
            (took, why), (took_other, why_other) = ranks.run("an_operand_fails")
            # While the group is being closed.
            self.assertEqual(ranks.close(LEAVE), [0, 0])
        self.assertIn("recv", why)
        for told in (why, why_other):
            self.assertIn("all_reduce", told)
        self.assertLess(max(took, took_other), PEERS / 2)


class FourRanks(Group):
    world = 4

    def test_collectives(self):
        self.run_on_all("shapes_and_views")
        self.run_on_all("between_two")

    def test_data_parallel_and_sharded_training_are_those_of_one_process(self):
        self.run_on_all("ddp")
        self.run_on_all("fsdp")

    def test_tensors_over_a_mesh_of_two_dimensions(self):
        self.run_on_all("tensors_over_a_mesh")

    def test_the_death_of_a_peer_is_an_error_with_the_collectives_name(self):
        *told, _ = self.run_on_all("a_peer_dies", gone=(self.world - 1,))
        for took, messages in told:
            self.assertLess(took, PEERS / 2)
            for message in messages:
                self.assertIn("all_reduce", message)


class Cache(unittest.TestCase):
    def test_ranks_that_start_together_compile_a_region_once(self):
        with tempfile.TemporaryDirectory() as folder:
            with Ranks(2, FUSELINE_CACHE="on", FUSELINE_CACHE_DIR=folder) as ranks:
                told = ranks.run("compiles", "some regions")
        each = [rank["compiles"] + rank["loads"] for rank in told]
        with self.subTest(told=told):
            self.assertGreaterEqual(min(each), 6)
            # One rank compiles what both need, and the other loads it.
            self.assertLessEqual(sum(rank["compiles"] for rank in told), max(each))


if __name__ == "__main__":
    unittest.main()
