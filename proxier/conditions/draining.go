package conditions

import (
	"fmt"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Drains returns who drains what. They are changed by Drain and Undrain alone.
func (k *Keeper) Drains() *Drains { return &k.drains }

// Drain drains a target, or changes why it is drained. The Loop has been told when it
// returns; and without error the disk has it, so that no crash ends it. Except after
// ErrTooManyDrains it is drained also after an error, until a restart.
func (k *Keeper) Drain(t DrainTarget, why policy.Drain) error {
	if err := k.drains.Set(t, why); err != nil {
		return err
	}
	return k.redrain(t)
}

// Undrain ends a drain, and reports whether there was one. The error is as that of Drain. Where the disk may still have one
// that was ended before, it is written again.
func (k *Keeper) Undrain(t DrainTarget) (bool, error) {
	switch {
	case k.drains.Remove(t):
	case k.unkept.Load():
		return false, k.keepDrains()
	default:
		return false, nil
	}
	return true, k.redrain(t)
}

// tellNode tells the Loop whether this host is drained, so that it hears the last.
func (k *Keeper) tellNode() {
	k.flushing.Lock()
	defer k.flushing.Unlock()
	k.cfg.OnNode(k.drains.Node() != nil)
}

// redrain has a change of drains take effect, and then keeps it: a disk that is slow, or gone, may be why a host is drained.
func (k *Keeper) redrain(t DrainTarget) error {
	k.mu.Lock()
	for key, s := range k.book.services {
		for i := range s.Endpoints {
			if !t.Node && t.Covers(key, s.Endpoints[i].Addr) {
				k.book.dirty[key] = true
				break
			}
		}
	}
	k.mu.Unlock()
	k.flush()
	wake.Once(k.news) // a drain may have a deadline, of which Run does not know yet
	if t.Node {
		k.tellNode()
	}
	return k.keepDrains()
}

// keepDrains has the disk have the drains.
func (k *Keeper) keepDrains() error {
	if err := k.save(true); err != nil {
		k.unkept.Store(true)
		wake.Once(k.unsaved) // Keep tries again
		return fmt.Errorf("keeping drains, which a restart would not know: %w", err)
	}
	return nil
}
