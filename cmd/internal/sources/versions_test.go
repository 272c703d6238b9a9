package sources

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// An applier notes whether what it is asked for may go on, and ends.
type applier struct {
	versioned
	err  error
	ends bool
}

func (a *applier) Apply(ctx context.Context, _ time.Duration) (file.Application, error) {
	a.err = ctx.Err()
	_, a.ends = ctx.Deadline()
	return file.Application{}, nil
}

// A client that goes away does not interrupt an apply, which has a limit of its own.
func TestApplyOutlivesItsClient(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var a applier
	if _, err := applyWhole(ctx, []fileSource{{&a, "file"}}, time.Minute); err != nil || a.err != nil || !a.ends {
		t.Errorf("%v; apply was given a context that ended: %v, has an end: %v", err, a.err, a.ends)
	}
}

// A holding source has a server whose answer is held, or files with something on trial or not.
type holding struct {
	source.Source
	held, allows bool
}

func (h *holding) SetAllowEmpty(allow bool) { h.allows = allow }
func (h *holding) Held() int                { return map[bool]int{true: 1}[h.held] }
func (h *holding) Status() source.Status    { return source.Status{Source: "kubernetes"} }
func (h *holding) Confirm(context.Context) (bool, error) {
	was := h.held
	h.held = false
	return was, nil
}

type confirming struct {
	source.Source
	versioned
	name    string
	applied bool
	server  bool
	err     error
}

func (c *confirming) Status() source.Status { return source.Status{Source: c.name} }
func (c *confirming) OnTrial() bool         { return c.applied }

func (c *confirming) Confirm(context.Context) (file.Confirmation, error) {
	return file.Confirmation{Applied: c.applied, Server: c.server, Files: []string{c.name + ".toml"}}, c.err
}

// What a server holds is confirmed with what files hold, and not by what ends a trial.
func TestConfirmReachesAllSources(t *testing.T) {
	late := errors.New("went back")
	for _, tt := range []struct {
		files *confirming
		held  bool
		want  string
	}{
		{nil, true, "[kubernetes] <nil>"},
		{nil, false, "[] " + errNoFiles.Error()},
		{&confirming{err: file.ErrNothingHeld}, true, "[kubernetes] <nil>"},
		{&confirming{err: file.ErrNothingHeld}, false, "[] " + file.ErrNothingHeld.Error()},
		{&confirming{}, true, "[kubernetes] <nil>"},
		{&confirming{applied: true}, true, "[] <nil>"},
		{&confirming{err: late}, true, "[] went back"},
	} {
		server := &holding{held: tt.held}
		v := Versioning{Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Sources: []source.Source{server}}
		if tt.files != nil {
			v.Sources = append(v.Sources, tt.files)
		}
		c, err := v.confirm(t.Context())
		if got := fmt.Sprint(c.Sources, " ", err); got != tt.want {
			t.Errorf("files %+v, held %v: %s; want %s", tt.files, tt.held, got, tt.want)
		}
	}
}

// A confirm reaches all sources of service files. If changes are on trial, only these are confirmed.
func TestConfirmOfSeveralSources(t *testing.T) {
	none, late := file.ErrNothingHeld, errors.New("went back")
	for _, tt := range []struct {
		files, http confirming
		want        string
	}{
		{confirming{err: none}, confirming{err: none}, "false [] [] " + none.Error()},
		{confirming{}, confirming{err: none}, "false [file.toml] [] <nil>"},
		{confirming{err: none}, confirming{server: true}, "false [http.toml] [http] <nil>"},
		{confirming{}, confirming{applied: true}, "true [http.toml] [] <nil>"},
		{confirming{applied: true}, confirming{applied: true}, "true [file.toml http.toml] [] <nil>"},
		{confirming{err: late}, confirming{err: none}, "false [file.toml] [] went back"},
	} {
		tt.files.name, tt.http.name = "file", "http"
		v := Versioning{Log: slog.New(slog.DiscardHandler), Sources: []source.Source{&tt.files, &tt.http}}
		c, err := v.confirm(t.Context())
		if got := fmt.Sprint(c.Applied, c.Files, c.Sources, " ", err); got != tt.want {
			t.Errorf("files %+v, http %+v: %s; want %s", tt.files, tt.http, got, tt.want)
		}
	}
}

// A rolling is a source that records what was rolled back.
type rolling struct {
	confirming
	asked string
}

func (r *rolling) Rollback(_ context.Context, name string, number int) (keep.Revision, error) {
	r.asked = fmt.Sprint(name, " ", number)
	return keep.Revision{}, nil
}

// The source that has a version rolls it back.
func TestRollbackOfSeveralSources(t *testing.T) {
	dir, url := t.TempDir(), "https://config.example.net/web.toml"
	write := func(source string, names ...string) {
		ctx, cancel := context.WithCancel(t.Context())
		st := keep.New(keep.SourceDir(dir, source), slog.New(slog.DiscardHandler))
		st.Load()
		var ended sync.WaitGroup
		ended.Go(func() { st.Run(ctx) })
		for _, name := range names {
			v := &read.Version{ID: read.IDOf([]byte(name), nil), Data: []byte(name), Size: len(name)}
			st.Put(map[string]keep.Entry{name: {Record: keep.Record{Sum: v.ID, At: time.Now()}, Version: v}})
			fatal.If(t, st.Flush(ctx))
		}
		cancel()
		ended.Wait()
	}
	old := Types
	t.Cleanup(func() { Types = old })
	Types = []Type{{Name: "file", Precedence: 1}, {Name: "http", Precedence: 2}}
	write("file", "a.toml", "web.toml")
	write("http", url)
	for _, tt := range []struct {
		name, want string
		number     int
	}{
		{"", "file: , http: , more than one source has a version 1; name the file before it", 1},
		{"", "file:  2, http: , <nil>", 2},
		{"/etc/svcproxy/a.toml", "file: a.toml 1, http: , <nil>", 1},
		{url, "file: , http: " + url + " 1, <nil>", 1},
	} {
		files, http := &rolling{confirming: confirming{name: "file"}}, &rolling{confirming: confirming{name: "http"}}
		v := Versioning{Log: slog.New(slog.DiscardHandler), StateDir: dir, Sources: []source.Source{files, http}}
		_, err := v.rollback(t.Context(), fileName(tt.name), tt.number)
		if got := fmt.Sprintf("file: %s, http: %s, %v", files.asked, http.asked, err); got != tt.want {
			t.Errorf("rollback %s %d: %s; want %s", tt.name, tt.number, got, tt.want)
		}
	}
	list, err := Histories(dir, "")
	if err != nil || len(list) != 3 || list[0].File != url {
		t.Errorf("history %+v, %v", list, err)
	}
	if list, err = Histories(dir, url); err != nil || len(list) != 1 {
		t.Errorf("history of %s: %+v, %v", url, list, err)
	}
}

func TestAllowEmpty(t *testing.T) {
	server := &holding{}
	s := configs.Default()
	for _, want := range []bool{true, false} {
		if s.Guard.AllowEmpty = nil; want {
			s.Guard.AllowEmpty = []string{"kubernetes"}
		}
		if Guard([]source.Source{server}, s); server.allows != want {
			t.Errorf("allow_empty = %q: %v", s.Guard.AllowEmpty, server.allows)
		}
	}
}
