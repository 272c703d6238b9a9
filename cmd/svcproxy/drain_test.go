package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/conditions"
)

func TestDrainUsage(t *testing.T) {
	const usage = "\nRun 'svcproxy --help' for usage.\n"
	const want = "; want an address without a port, or NAME/ADDRESS, or NAMESPACE/NAME/ADDRESS"
	for args, says := range map[string]string{
		"drain --wait":                    "what is to be drained? want an address, NAME/ADDRESS or --node",
		"drain --node 192.0.2.1":          "--node goes without an address",
		"drain node":                      "this host is --node",
		"drain 192.0.2.1:80":              `unknown target "192.0.2.1:80"` + want,
		"drain web":                       `unknown target "web"` + want,
		"drain 192.0.2.1 --timeout 999ms": "timeout 999ms; want 1s to 168h0m0s",
		"drain 192.0.2.1 --timeout -1s":   "timeout -1s; want 1s to 168h0m0s",
		"drain --json web/192.0.2.1":      "--json is for what is drained, without a target",
		"drain 192.0.2.1 --reason " + strings.Repeat("x", 201): "the reason has 201 bytes; want 200 at most",
		"drain --timeout 0":                   "what is to be drained? want an address, NAME/ADDRESS or --node",
		"undrain":                             "what is drained? want an address, NAME/ADDRESS or --node",
		"undrain a/b/c/192.0.2.1":             `unknown target "a/b/c/192.0.2.1"` + want,
		"drain 192.0.2.1 --timeout 168h0m1ms": "timeout 168h0m0.001s; want 1s to 168h0m0s",
	} {
		code, _, stderr := call(t, t.TempDir(), strings.Fields(args)...)
		if code != exitUsage || stderr != "svcproxy: "+says+usage {
			t.Errorf("%s: exit %d: %s\nwant %s", args, code, stderr, says)
		}
	}
	for _, args := range []string{"drain", "drain fd00::1", "undrain --node"} {
		if code, _, stderr := call(t, t.TempDir(), strings.Fields(args)...); code != exitUnreachable {
			t.Errorf("%s without a daemon: exit %d: %s", args, code, stderr)
		}
	}
}

// What a daemon answers second by second, what is printed, and how the wait ends.
func TestDrainWaitFollowsTheDaemon(t *testing.T) {
	some := func(n int) control.Remaining {
		return control.Remaining{Drained: true, Services: []control.RemainingIn{{Namespace: "default", Name: "web", Connections: n}}}
	}
	until := func(r control.Remaining, d time.Duration) any {
		r.Until = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(d)
		return r
	}
	none, gone := control.Remaining{Drained: true}, fmt.Errorf("%w: gone", control.ErrUnreachable)
	once := control.Remaining{Drained: true, Looked: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)}
	starts := control.Remaining{Drained: true, Unknown: "the first sync is not complete"}
	const oneLeft, noneLeft, noAnswer = "left: 1 connection: default/web 1\n", "left: nothing\n", "left: not known: svcproxy does not answer\n"
	tests := []struct {
		name    string
		answers []any // the last again and again
		took    time.Duration
		out     string
		err     string // empty: none
	}{
		{"nothing left", []any{none}, time.Second, noneLeft, ""},
		{"one look again", []any{once, once, once, none}, 3 * time.Second, noneLeft, ""},
		{"some", []any{some(2), some(1), some(1), none}, 4 * time.Second, "left: 2 connections: default/web 2\n" + oneLeft + noneLeft, ""},
		{"one that was on its way", []any{none, some(1), none}, 3 * time.Second, noneLeft + oneLeft + noneLeft, ""},
		{"a restart", []any{some(1), gone, starts, none}, 4 * time.Second,
			oneLeft + noAnswer + "left: not known: the first sync is not complete\n" + noneLeft, ""},
		{"nothing before and after it", []any{none, gone, none}, 3 * time.Second, noneLeft + noAnswer + noneLeft, ""},
		{"no restart", []any{some(1), gone}, waitPatience, oneLeft + noAnswer, "svcproxy does not answer"},
		{"undrained", []any{some(1), control.Remaining{}}, time.Second, oneLeft, "192.0.2.12 is not drained any more"},
		{"no rights", []any{control.ErrNoRights}, 0, "", "svcproxy cannot be asked"},
		{"closed at the deadline", []any{until(some(1), time.Second), until(some(1), time.Second), until(some(1), time.Second), none}, 4 * time.Second, oneLeft + noneLeft, ""},
		{"not closed", []any{until(some(1), time.Second)}, time.Second + waitClosing + time.Second, oneLeft, "the time is over, and these connections go on: 1 connection: default/web 1"},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			asked := 0
			w := drainWait{program: &program{stdout: &out}, target: drainTarget(t), interval: waitInterval, patience: waitPatience,
				ask: func(r *control.Remaining) error {
					a := tt.answers[min(asked, len(tt.answers)-1)]
					asked++
					if err, bad := a.(error); bad {
						return err
					}
					if *r = a.(control.Remaining); r.Looked.IsZero() && r.Unknown == "" {
						r.Looked = time.Now()
					}
					return nil
				}}
			begin := time.Now()
			err := w.run(t.Context())
			if took := time.Since(begin); took != tt.took || out.String() != tt.out {
				t.Errorf("%s: %v\n%swant %v\n%s", tt.name, took, out.String(), tt.took, tt.out)
			}
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("%s: %v, want %q", tt.name, err, tt.err)
			}
		})
	}
}

func drainTarget(t *testing.T) conditions.DrainTarget {
	t.Helper()
	target, err := conditions.ParseDrainTarget("192.0.2.12")
	fatal.If(t, err)
	return target
}

// Who interrupts a wait hears that the drain goes on.
func TestDrainWaitInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		w := drainWait{program: &program{stdout: new(bytes.Buffer)}, target: drainTarget(t), interval: waitInterval, patience: waitPatience,
			ask: func(r *control.Remaining) error {
				*r = control.Remaining{Drained: true, Services: []control.RemainingIn{{Connections: 1}}}
				return ctx.Err()
			}}
		err := w.run(ctx)
		if err == nil || errors.Is(err, context.DeadlineExceeded) || err.Error() != "interrupted: 192.0.2.12 stays drained" {
			t.Errorf("got %v", err)
		}
	})
}
