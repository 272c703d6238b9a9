package daemon

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source/file"
)

// versioned is a source that keeps earlier versions, and holds changes.
type versioned interface {
	SetGuard(file.Guard)
	SetKeep(n int)
	Held() int
	Rollback(ctx context.Context, name string, number int) (file.Revision, error)
	Confirm(context.Context) (file.Confirmation, error)
	Apply(ctx context.Context, timeout time.Duration) (file.Application, error)
}

var _ versioned = &file.Source{}

// guardOf returns which changes of files are held under settings.
func guardOf(s configs.Settings) file.Guard {
	return file.Guard{Removals: s.Guard.Removals, Manual: s.Guard.Apply == "manual"}
}

// guard takes over which changes are held, and how many versions are kept.
func (d *daemon) guard(now configs.Settings) {
	each(d.sources, func(s versioned) {
		s.SetGuard(guardOf(now))
		s.SetKeep(now.History.Keep)
	})
}

var errNoFiles = errors.New("service files are not among the sources")

// versions returns the source of files.
func (d *daemon) versions() (v versioned, err error) {
	each(d.sources, func(s versioned) { v = s })
	if v == nil {
		err = errNoFiles
	}
	return v, err
}

// versionRoutes adds what is asked about versions of files.
func (d *daemon) versionRoutes(r *control.Routes) {
	control.Get(r, "/v1/history", func(_ context.Context, q url.Values) ([]file.Revision, error) {
		return file.Histories(d.StateDir, fileName(q.Get("file")))
	})
	control.Post(r, "/v1/rollback", func(ctx context.Context, by control.Peer, q control.Rollback) (file.Revision, error) {
		v, err := d.versions()
		if err != nil {
			return file.Revision{}, err
		}
		d.log.Info("asked to roll back", "file", q.File, "version", q.Number, "by", by)
		return v.Rollback(ctx, fileName(q.File), q.Number)
	})
	control.Post(r, "/v1/confirm", func(ctx context.Context, by control.Peer, _ struct{}) (file.Confirmation, error) {
		v, err := d.versions()
		if err != nil {
			return file.Confirmation{}, err
		}
		d.log.Info("asked to confirm", "by", by)
		return v.Confirm(ctx)
	})
	control.Post(r, "/v1/apply", func(ctx context.Context, by control.Peer, q control.Apply) (file.Application, error) {
		v, err := d.versions()
		if err != nil {
			return file.Application{}, err
		}
		d.log.Info("asked to apply", "timeout", q.Timeout, "by", by)
		return applyWhole(ctx, v, q.Timeout)
	})
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
