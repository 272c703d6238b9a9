package sources

import (
	"context"
	"errors"
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
	"svcproxy.dev/svcproxy/source/remote"
)

// versioned is a source that keeps earlier versions, and holds changes.
type versioned interface {
	SetGuard(file.Guard)
	SetKeep(n int)
	Held() int
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
	})
	for _, s := range sources {
		if c, ok := s.(remote.Confirmer); ok {
			c.SetAllowEmpty(slices.Contains(now.Guard.AllowEmpty, s.Status().Source))
		}
	}
}

var errNoFiles = errors.New("service files are not among the sources")

// Versioning answers and changes which versions of files there are.
type Versioning struct {
	Log      *slog.Logger
	StateDir string
	Sources  []source.Source
}

// files returns the source of files.
func (v *Versioning) files() (f versioned, err error) {
	Each(v.Sources, func(s versioned) { f = s })
	if f == nil {
		err = errNoFiles
	}
	return f, err
}

// AddRoutes adds what is asked about versions of files.
func (v *Versioning) AddRoutes(r *control.Routes) {
	control.Get(r, "/v1/history", func(_ context.Context, q url.Values) ([]keep.Revision, error) {
		return keep.Histories(v.StateDir, fileName(q.Get("file")))
	})
	control.Post(r, "/v1/rollback", func(ctx context.Context, by control.Peer, q control.Rollback) (keep.Revision, error) {
		f, err := v.files()
		if err != nil {
			return keep.Revision{}, err
		}
		v.Log.Info("asked to roll back", "file", q.File, "version", q.Number, "by", by)
		return f.Rollback(ctx, fileName(q.File), q.Number)
	})
	control.Post(r, "/v1/confirm", func(ctx context.Context, by control.Peer, _ struct{}) (control.Confirmation, error) {
		v.Log.Info("asked to confirm", "by", by)
		return v.confirm(ctx)
	})
	control.Post(r, "/v1/apply", func(ctx context.Context, by control.Peer, q control.Apply) (file.Application, error) {
		f, err := v.files()
		if err != nil {
			return file.Application{}, err
		}
		v.Log.Info("asked to apply", "timeout", q.Timeout, "by", by)
		return applyWhole(ctx, f, q.Timeout)
	})
}

// confirm confirms what files hold or have on trial and, unless that was a trial, what servers hold. It is an
// error that there is neither.
func (v *Versioning) confirm(ctx context.Context) (c control.Confirmation, err error) {
	f, none := v.files()
	if none == nil {
		c.Confirmation, none = f.Confirm(ctx)
		if c.Applied || none != nil && !errors.Is(none, file.ErrNothingHeld) {
			return c, none
		}
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
			c.Sources = append(c.Sources, s.Status().Source)
		}
	}
	if len(c.Sources) > 0 {
		return c, nil
	}
	return c, none
}

// applyLimit is how long an apply may take: clients give up after 30 s without an answer.
const applyLimit = 20 * time.Second

// applyWhole applies also for a client that goes away meanwhile: none of it is left half done.
func applyWhole(ctx context.Context, v versioned, timeout time.Duration) (file.Application, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyLimit)
	defer cancel()
	return v.Apply(ctx, timeout)
}

// fileName returns the name of a service file that may be written with its directory.
func fileName(path string) string {
	if path == "" {
		return ""
	}
	return filepath.Base(path)
}
