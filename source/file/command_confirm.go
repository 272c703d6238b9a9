package file

import (
	"context"
	"errors"

	"svcproxy.dev/svcproxy/source"
)

// A Confirmation says what Confirm did.
type Confirmation struct {
	Applied bool           `json:"applied"`          // what was applied on trial stays
	Files   []string       `json:"files,omitempty"`  // whose held changes went through
	Faults  []source.Fault `json:"faults,omitempty"` // why another held change cannot be used: the first of each file
	Held    int            `json:"held,omitempty"`   // files that are held still
}

// ErrNothingHeld says that there is nothing to confirm.
var ErrNothingHeld = errors.New("nothing waits to be confirmed: no change is held, and no apply is under way")

// Confirm has what was applied on trial stay or, where nothing was, lets all changes through that
// are held. It is an error that there is nothing to confirm, and the first time after an apply
// went back, for which it is too late.
func (s *Source) Confirm(ctx context.Context) (c Confirmation, err error) {
	s.decideMu.Lock()
	defer s.decideMu.Unlock()
	err = s.inRun(ctx, func(sink source.Sink) error {
		late := s.takeOverdue()
		switch {
		case s.decisions.trial != nil:
			s.setTrial(nil)
			c.Applied = true
			s.log.Info("what was applied is confirmed")
		case late != nil:
			return late
		case len(s.held) > 0:
			r := s.release(sink)
			c.Files, c.Faults = r.files, r.faults
		default:
			return ErrNothingHeld
		}
		c.Held = len(s.held)
		return nil
	})
	if err != nil {
		return c, err
	}
	return c, s.kept(ctx, c.Files...)
}
