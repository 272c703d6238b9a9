package file

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A confirm that comes too late for an apply does not let through what the guard holds.
func TestConfirmLate(t *testing.T) {
	guarded(t, Guard{Removals: 30}, func(h *host) {
		h.many(12)
		h.start()
		moment()
		h.apply(10 * time.Second)
		h.change(h.emptyDir)
		h.has("emptied in a trial", 12, 12)
		pass(20 * time.Second)
		_, err := h.src.Confirm(context.Background())
		if err == nil || !strings.HasPrefix(err.Error(), "the apply of ") || !strings.HasSuffix(err.Error(), "; confirm again to let through what is held") {
			t.Errorf("confirm: %v", err)
		}
		moment()
		h.has("after a late confirm", 12, 12)
		if c := h.confirm(); len(c.Files) != 12 {
			t.Errorf("confirmed again: %+v", c)
		}
		h.has("confirmed again", 0, 0)
	})
}
