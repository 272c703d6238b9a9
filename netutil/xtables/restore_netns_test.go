//go:build netns

package xtables

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// A program that ends without an error and writes nothing is found out, and one that has nothing to change is not.
func TestRestoreNoticesThatNothingWasWritten(t *testing.T) {
	netnstest.Enter(t)
	for _, v6 := range []bool{false, true} {
		tool := &Tool{Variant: NFT, IPv6: v6}
		fatal.If(t, tool.find(tool.String()))
		restore := func(build func(s *Script)) error {
			var s Script
			build(&s)
			return tool.Restore(t.Context(), &s)
		}
		set := func(s *Script) { s.Set("nat", "OURS", []byte("-A OURS -j RETURN\n")) }
		empty := func(s *Script) { s.Set("nat", "OURS", nil) }
		remove := func(s *Script) { s.Remove("nat", "OURS") }
		for i, build := range []func(s *Script){set, set, empty, empty, remove, remove} {
			if err := restore(build); err != nil {
				t.Errorf("%s, step %d: %v", tool, i, err)
			}
		}
		idle := filepath.Join(t.TempDir(), "restore")
		fatal.If(t, os.WriteFile(idle, []byte("#!/bin/sh\nexec cat >/dev/null\n"), 0o755))
		tool.restore = idle
		if err := restore(set); !errors.Is(err, ErrNothingWritten) {
			t.Errorf("%s by a program that does nothing: %v", tool, err)
		}
	}
}
