//go:build netns

package file

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
)

// inUserNamespace in the environment says that a test runs in a namespace of its own.
const inUserNamespace = "SVCPROXY_TEST_USER_NAMESPACE"

// How many inotify instances and watches the users of a namespace may have.
const (
	maxInstances = "/proc/sys/user/max_inotify_instances"
	maxWatches   = "/proc/sys/user/max_inotify_watches"
)

// A host whose inotify instances or watches are used up has files listed, says so,
// and watches them as soon as it can.
func TestWithoutInotify(t *testing.T) {
	if os.Getenv(inUserNamespace) == "" {
		inNamespace(t)
		return
	}
	check(t, os.WriteFile(maxInstances, []byte("0"), 0))
	dir := t.TempDir()
	write(t, dir+"/a.toml", "a 1\n")
	src := New(Options{Dir: dir, Poll: time.Hour, Log: slog.New(slog.DiscardHandler)})
	src.parse, src.parseCopy = parseLines, parseLines
	sink := newRecorder(t, dir)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- src.Run(ctx, sink) }()
	defer func() { stop(); <-done }()
	sink.await("without inotify", "a.toml: a 1")
	warned := func(what string) {
		t.Helper()
		var got string
		pace.UntilOr(t, func() bool {
			got = strings.Join(src.Status().Warnings, "; ")
			return src.Problems()["watch"] == (what != "") && strings.HasSuffix(got, what) && (what != "" || got == "")
		}, func() string { return fmt.Sprintf("status warns of %q, want %q", got, what) })
	}
	warned("too many open files; raise fs.inotify.max_user_instances, or the limit of open files")
	write(t, dir+"/a.toml", "a 2\n")
	sink.await("listed", "a.toml: a 2")
	check(t, os.WriteFile(maxWatches, []byte("0"), 0))
	check(t, os.WriteFile(maxInstances, []byte("10"), 0))
	warned("no space left on device; raise fs.inotify.max_user_watches")
	check(t, os.WriteFile(maxWatches, []byte("1000"), 0))
	warned("")
}

// inNamespace runs this test once more, as root of a user namespace of its own.
func inNamespace(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), inUserNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
