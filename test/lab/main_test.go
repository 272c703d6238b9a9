//go:build netns

package lab

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// svcproxyBinary builds svcproxy once, when the first test needs it.
var svcproxyBinary = sync.OnceValues(func() (string, error) { return Build(buildDir) })

var buildDir string

func TestMain(m *testing.M) {
	if spec := os.Getenv(envContainer); spec != "" {
		runtime.LockOSThread()
		fmt.Fprintln(os.Stderr, enter(spec))
		os.Exit(1)
	}
	os.Exit(run(m))
}

// soaking is set to run many times what else runs a few times, so that what goes
// wrong once in a hundred times shows.
var soaking = os.Getenv("SVCPROXY_SOAK") == "1"

// soak returns how much of something to do: a little, or a lot.
func soak[T any](some, much T) T {
	if soaking {
		return much
	}
	return some
}

// parallelGroups is how many groups of cases run at a time. They mostly wait. In
// a soak there is one, for how long a change takes is promised of an idle host.
// Where the processor is emulated they work rather than wait.
var parallelGroups = func() string {
	if slowness > 1 {
		return "2"
	}
	return soak("4", "1")
}()

func run(m *testing.M) int {
	flag.Parse()
	err := flag.Set("test.parallel", parallelGroups)
	if err == nil {
		buildDir, err = netnstest.TempDir()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(buildDir)
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
