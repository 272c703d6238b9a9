package sources

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
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
	if _, err := applyWhole(ctx, &a, time.Minute); err != nil || a.err != nil || !a.ends {
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
	applied bool
	err     error
}

func (c *confirming) Confirm(context.Context) (file.Confirmation, error) {
	return file.Confirmation{Applied: c.applied}, c.err
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
