package file

import (
	"context"
	"fmt"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// Rollback has an older version of a file used until the file changes again. An empty name
// is that of the file that has this version. What it returns is that version. After an
// error that wraps ErrNotKept it is used, but a restart may not know it.
func (s *Source) Rollback(ctx context.Context, name string, number int) (keep.Revision, error) {
	if s.store == nil {
		return keep.Revision{}, errNoStore
	}
	s.decideMu.Lock()
	defer s.decideMu.Unlock()
	r, text, err := s.store.Revision(name, number)
	if err != nil {
		return r, err
	}
	v, err := s.parseKept(ctx, r.File, text)
	if err != nil {
		return r, err
	}
	v.UID = r.UID
	if err := s.fitsUsed(ctx, r.File, v); err != nil {
		return r, err
	}
	why := fmt.Sprintf("version %d, accepted at %s, is used in place of the present file", r.Number, clock(r.At))
	err = s.inRun(ctx, func(sink source.Sink) error {
		s.mu.Lock()
		if t := s.decisions.trial; t != nil {
			t.before[r.File] = v // what was asked for stays
			delete(t.refused, r.File)
		}
		s.mu.Unlock()
		s.useInstead(sink, map[string]*read.Version{r.File: v}, why)
		return nil
	})
	if err != nil {
		return r, err
	}
	return r, s.kept(ctx, r.File)
}

// fitsUsed returns why a version of a file cannot be used with the lists, or the services, of the others.
func (s *Source) fitsUsed(ctx context.Context, name string, v *read.Version) error {
	return s.inRun(ctx, func(source.Sink) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		f := s.files[name]
		if f == nil {
			f = &state{path: s.path(name)}
			s.files[name] = f
			defer delete(s.files, name)
		}
		for _, faults := range s.fit(map[*state]*read.Version{f: v}) {
			return fmt.Errorf("this version of %s cannot be used with what is used of the others: %s", source.Quote(name), faults[0])
		}
		return nil
	})
}
