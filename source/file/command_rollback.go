package file

import (
	"context"
	"fmt"

	"svcproxy.dev/svcproxy/source"
)

// Rollback has an older version of a file used until the file changes again. An empty name
// is that of the file that has this version. What it returns is that version. After an
// error that wraps ErrNotKept it is used, but a restart may not know it.
func (s *Source) Rollback(ctx context.Context, name string, number int) (Revision, error) {
	if s.store == nil {
		return Revision{}, errNoStore
	}
	s.decideMu.Lock()
	defer s.decideMu.Unlock()
	r, err := revisionNumbered(s.store.stateDir(), name, number)
	if err != nil {
		return r, err
	}
	sum, _ := r.sum()
	v, err := s.keptVersion(ctx, r.File, sum)
	if err != nil {
		return r, err
	}
	v.uid = r.UID
	why := fmt.Sprintf("version %d, accepted at %s, is used in place of the present file", r.Number, clock(r.At))
	err = s.inRun(ctx, func(sink source.Sink) error {
		s.mu.Lock()
		if t := s.decisions.trial; t != nil {
			t.before[r.File] = v // what was asked for stays
			delete(t.refused, r.File)
		}
		s.mu.Unlock()
		s.useInstead(sink, map[string]*version{r.File: v}, why)
		return nil
	})
	if err != nil {
		return r, err
	}
	return r, s.kept(ctx, r.File)
}
