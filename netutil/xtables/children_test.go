package xtables

import "testing"

// A commit is one of ours by process and generation: another process may have the
// same id in its own pid namespace, while one of ours runs or after.
func TestCommitsOfChildren(t *testing.T) {
	const first, second = 1 << 30, 1<<30 + 1 // more than there can be
	expect := func(when string, pid, generation uint32, want bool) {
		t.Helper()
		if got := Committed(pid, generation); got != want {
			t.Errorf("%s: generation %d: ours %v, want %v", when, generation, got, want)
		}
	}
	started(first, 100)
	expect("while it runs, before it", first, 100, false)
	expect("while it runs", first, 101, true)
	expect("while it runs, another process", second, 101, false)
	ended(first, 103)
	expect("after it has ended", first, 103, true)
	expect("after it has ended, another's commit", first, 104, false)
	started(first, 200)
	expect("the same id again", first, 201, true)
	expect("the same id again, between", first, 150, false)
	ended(first, 201)
	started(second, 1<<32-2)
	ended(second, 1)
	expect("generations wrap", second, 0, true)
	expect("generations wrap, after", second, 2, false)
	expect("generations wrap, before", second, 1<<32-2, false)
}
