package sources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
	"svcproxy.dev/svcproxy/source/remote"
)

// versioned is a source that keeps earlier versions, and holds changes.
type versioned interface {
	SetGuard(file.Guard)
	SetKeep(n int)
	SetAllowEmpty(names []string)
	Held() int
	OnTrial() bool
	Rollback(ctx context.Context, name string, number int) (keep.Revision, error)
	Confirm(context.Context) (file.Confirmation, error)
	Apply(ctx context.Context, timeout time.Duration) (file.Application, error)
}

var _ versioned = &file.Source{}

// guardOf returns which changes of files are held under settings.
func guardOf(s configs.Settings) file.Guard {
	return file.Guard{Removals: s.Guard.Removals, Manual: s.Guard.Apply == "manual"}
}

// Guard has sources take over which changes are held, and how many versions are kept.
func Guard(sources []source.Source, now configs.Settings) {
	Each(sources, func(s versioned) {
		s.SetGuard(guardOf(now))
		s.SetKeep(now.History.Keep)
		s.SetAllowEmpty(now.Guard.AllowEmpty)
	})
	for _, s := range sources {
		if c, ok := s.(remote.Confirmer); ok {
			c.SetAllowEmpty(slices.Contains(now.Guard.AllowEmpty, s.Status().Source))
		}
	}
}

var errNoFiles = errors.New("service files are not among the sources")

// Versioning answers requests about the versions of service files, of a directory and of servers, and changes them.
type Versioning struct {
	Log      *slog.Logger
	StateDir string
	Sources  []source.Source
}

// A fileSource is a source of service files.
type fileSource struct {
	versioned
	name string
}

// files returns the sources of service files.
func (v *Versioning) files() (list []fileSource, err error) {
	for _, s := range v.Sources {
		if f, ok := s.(versioned); ok {
			list = append(list, fileSource{f, s.Status().Source})
		}
	}
	if len(list) == 0 {
		err = errNoFiles
	}
	return list, err
}

// AddRoutes adds what is asked about versions of files.
func (v *Versioning) AddRoutes(r *control.Routes) {
	control.Get(r, "/v1/history", func(_ context.Context, q url.Values) ([]keep.Revision, error) {
		return Histories(v.StateDir, q.Get("file"))
	})
	control.Post(r, "/v1/rollback", func(ctx context.Context, by control.Peer, q control.Rollback) (keep.Revision, error) {
		v.Log.Info("asked to roll back", "file", q.File, "version", q.Number, "by", by)
		return v.rollback(ctx, fileName(q.File), q.Number)
	})
	control.Post(r, "/v1/confirm", func(ctx context.Context, by control.Peer, _ struct{}) (control.Confirmation, error) {
		v.Log.Info("asked to confirm", "by", by)
		return v.confirm(ctx)
	})
	control.Post(r, "/v1/apply", func(ctx context.Context, by control.Peer, q control.Apply) (file.Application, error) {
		list, err := v.files()
		if err != nil {
			return file.Application{}, err
		}
		v.Log.Info("asked to apply", "timeout", q.Timeout, "by", by)
		return applyWhole(ctx, list, q.Timeout)
	})
}

// Histories returns the versions of service files of all sources that are saved in a state directory, the newest first. With a
// name it returns only versions of this file. It writes nothing.
func Histories(stateDir, name string) (all []keep.Revision, err error) {
	for _, t := range byPrecedence() {
		list, err := keep.Histories(keep.SourceDir(stateDir, t.Name), fileName(name))
		if err != nil {
			return nil, err
		}
		several := len(all) > 0 && len(list) > 0
		if all = append(all, list...); several {
			slices.SortStableFunc(all, func(a, b keep.Revision) int { return b.At.Compare(a.At) })
		}
	}
	return all, nil
}

// rollback rolls back to a version of the source that has it. Each source numbers its own versions.
func (v *Versioning) rollback(ctx context.Context, name string, number int) (keep.Revision, error) {
	list, err := v.files()
	if err != nil {
		return keep.Revision{}, err
	}
	has := slices.DeleteFunc(slices.Clone(list), func(s fileSource) bool {
		known, err := keep.Histories(keep.SourceDir(v.StateDir, s.name), name)
		return err == nil && !slices.ContainsFunc(known, func(r keep.Revision) bool { return r.Number == number })
	})
	switch len(has) {
	case 0:
		return list[0].Rollback(ctx, name, number) // it returns the reason
	case 1:
		return has[0].Rollback(ctx, name, number)
	}
	return keep.Revision{}, fmt.Errorf("more than one source has a version %d; name the file before it", number)
}

// confirm confirms the changes on trial. If there are none, it confirms the held changes of files and servers. It returns an
// error if there is nothing to confirm.
func (v *Versioning) confirm(ctx context.Context) (c control.Confirmation, err error) {
	list, none := v.files()
	if slices.ContainsFunc(list, func(s fileSource) bool { return s.OnTrial() }) {
		list = slices.DeleteFunc(list, func(s fileSource) bool { return !s.OnTrial() })
	}
	var failed error
	done := false
	for _, s := range list {
		one, err := s.Confirm(ctx)
		if none = file.ErrNothingHeld; errors.Is(err, none) {
			continue
		}
		done, failed = true, errors.Join(failed, err)
		c.Applied, c.Held = c.Applied || one.Applied, c.Held+one.Held
		c.Files, c.Faults = append(c.Files, one.Files...), append(c.Faults, one.Faults...)
		if one.Server {
			c.Sources = append(c.Sources, s.name)
		}
	}
	if c.Applied || failed != nil {
		return c, failed
	}
	for _, s := range v.Sources {
		server, ok := s.(remote.Confirmer)
		if !ok {
			continue
		}
		some, err := server.Confirm(ctx)
		if err != nil {
			return c, err
		}
		if some {
			done = true
			c.Sources = append(c.Sources, s.Status().Source)
		}
	}
	if done {
		return c, nil
	}
	return c, none
}

// applyLimit is how long an apply may take: clients give up after 30 s without an answer.
const applyLimit = 20 * time.Second

// applyWhole applies the files of all sources. It continues if the client goes away, so that the apply is not left incomplete.
// If a later source fails, the earlier ones are on trial and will go back.
func applyWhole(ctx context.Context, list []fileSource, timeout time.Duration) (a file.Application, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyLimit)
	defer cancel()
	for i, s := range list {
		one, err := s.Apply(ctx, timeout)
		a.Files, a.Faults = append(a.Files, one.Files...), append(a.Faults, one.Faults...)
		if i == 0 || one.Until.Before(a.Until) && !one.Until.IsZero() {
			a.Until = one.Until
		}
		if err != nil && i > 0 {
			err = fmt.Errorf("applying what source %q has: %w; what source %q has is on trial until %s", s.name, err, list[0].name, a.Until.Format(time.TimeOnly))
		}
		if err != nil {
			return a, err
		}
	}
	return a, nil
}

// fileName returns the base name of a service file, or the full name of a text of a server.
func fileName(path string) string {
	if path == "" || read.IsTextName(path) {
		return path
	}
	return filepath.Base(path)
}
