package program

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/internal/pace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Package healthcheck has the tests of the rights of programs, and of programs that do not end.
func TestRun(t *testing.T) {
	g := NewGroup(1, 1)
	t.Setenv("SECRET", "x")
	for _, tt := range []struct {
		name, script string
		env          []string
		want         string
	}{
		{"good", "exit 0", nil, ""},
		{"bad", "echo no; exit 3", nil, "exit code 3: no"},
		{"environment", `test "$A,$SECRET,$LANG" = "b c,,C.UTF-8"`, []string{"A=b c"}, ""},
	} {
		got := ""
		if err := g.Run(t.Context(), Command{Args: []string{"/bin/sh", "-c", tt.script}, Env: tt.env}); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), pace.Scale(200*time.Millisecond))
	defer cancel()
	if err := g.Run(ctx, Command{Args: []string{"/bin/sleep", "1000"}}); !errors.Is(err, ErrTimedOut) {
		t.Errorf("a program that goes on: %v", err)
	}
	if err := g.Run(t.Context(), Command{Args: []string{"/nonexistent"}}); !isNotRun(err, "no such file or directory") {
		t.Errorf("no program: %v", err)
	}
}

// isNotRun reports whether err is a NotRunError with these words.
func isNotRun(err error, words string) bool {
	_, is := errors.AsType[*NotRunError](err)
	return is && err.Error() == words
}

// No program is started while the maximum number of programs wait for a disk.
func TestUnbegunProgramsAreBounded(t *testing.T) {
	g := NewGroup(4, 2)
	g.unbegun.Add(2)
	if err := g.Run(t.Context(), Command{Args: []string{"/bin/true"}}); !isNotRun(err, ErrUnbegun.Error()) {
		t.Errorf("beside those: %v", err)
	}
	g.unbegun.Add(-2)
	if err := g.Run(t.Context(), Command{Args: []string{"/bin/true"}}); err != nil {
		t.Errorf("after them: %v", err)
	}
}

// Programs that no signal can end do not block the caller. If there are too many of them, no more programs are started.
func TestProgramsThatDoNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 8
		g := NewGroup(most, 1)
		release := make(chan struct{})
		hang := func() error { <-release; return nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for i := range most {
			if err := g.ended(ctx, hang); !errors.Is(err, ErrTimedOut) {
				t.Fatalf("program %d: %v", i, err)
			}
		}
		if err := g.ended(ctx, hang); !isNotRun(err, ErrUnended.Error()) {
			t.Errorf("after %d that do not end: %v", most, err)
		}
		close(release)
		synctest.Wait()
		if err := g.ended(t.Context(), func() error { return context.Canceled }); !errors.Is(err, context.Canceled) || g.running.Load() != 0 {
			t.Errorf("when they have ended: %v, and %d are running", err, g.running.Load())
		}
	})
}
