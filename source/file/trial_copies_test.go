package file

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// A trial goes back also where the history cannot be kept.
func TestApplyWithoutHistory(t *testing.T) {
	for _, restart := range []bool{false, true} {
		bubble(t, func(h *host) {
			write(t, h.state+"/history", "not a directory")
			h.write("a.toml", "a 1\n")
			h.start()
			moment()
			h.apply(time.Minute)
			h.change(func() { h.write("a.toml", "a 2\n") })
			if restart {
				h.restart()
				h.uses("after a restart", "a 2")
			}
			pass(2 * time.Minute)
			h.uses("gone back", "a 1")
		})
	}
}

// A copy that is lost while an apply is on trial is what this run knows.
func TestApplyCopyLost(t *testing.T) {
	bubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		h.apply(time.Minute)
		h.change(func() { h.write("a.toml", "a 2\n") })
		h.removeCopy()
		pass(2 * time.Minute)
		h.uses("gone back", "a 1")
	})
}

// Without what it is to go back to nothing is applied.
func TestApplyNeedsCopies(t *testing.T) {
	bubble(t, func(h *host) {
		h.guard.Manual = true
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		h.change(func() { h.write("a.toml", "a 2\n") })
		path := h.removeCopy()
		defer write(t, path, "a 1\n")
		_, err := h.src.Apply(context.Background(), time.Minute)
		if err == nil || !strings.HasPrefix(err.Error(), "nothing was applied: it could not go back: ") {
			t.Errorf("apply: %v", err)
		}
		moment()
		h.uses("after that", "a 1")
		if w := h.warnings(); len(w) > 0 {
			t.Errorf("warnings: %q", w)
		}
	})
}

// removeCopy removes all copies of the first version of a.toml, and returns the path of the store's.
func (h *host) removeCopy() string {
	path := h.copyOf("a.toml", "a 1\n")
	check(h.T, errors.Join(os.Remove(path), os.RemoveAll(h.state+"/history")))
	return path
}

// A damaged line of the history's index takes no copy away that a trial goes back to.
func TestHistoryIndexDamaged(t *testing.T) {
	bubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.write("z.toml", "z 1\n")
		h.start()
		moment()
		h.apply(10 * time.Minute)
		h.change(func() { h.write("a.toml", "a 2\n") })
		h.stop()
		check(t, os.RemoveAll(h.copyOf("a.toml", "a 1\n")))
		index := h.state + "/history/index"
		data, err := os.ReadFile(index)
		check(t, err)
		lines := strings.SplitAfter(string(data), "\n")
		for i, line := range lines {
			if strings.Contains(line, `"a.toml"`) {
				lines[i] = "00000000 x\n"
			}
		}
		write(t, index, strings.Join(lines, ""))
		h.start()
		moment()
		h.change(func() { h.write("z.toml", "z 2\n") })
		pass(20 * time.Minute)
		h.uses("gone back", "a 1, z 1")
	})
}
