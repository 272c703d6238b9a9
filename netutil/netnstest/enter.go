package netnstest

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/vishvananda/netns"
)

// Enter moves the test into a new network namespace, until it ends. The test
// stays on its thread: goroutines that it starts are in another namespace.
func Enter(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	own, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		own.Close()
		if err := netns.Set(home); err != nil {
			t.Fatal(err) // the thread stays locked and dies with the test
		}
		home.Close()
		runtime.UnlockOSThread()
	})
}

// Here returns a function for a goroutine that runs f in the namespace that the
// caller is in. It must end before the test does.
func Here(t testing.TB, f func()) func() {
	t.Helper()
	here, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close() })
	return func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := netns.Set(here); err != nil {
			t.Error(err)
			return
		}
		f()
	}
}

// Example runs the body of an example in a new network namespace, and says on
// standard output what fails.
func Example(f func() error) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, and the namespace with it
		ns, err := netns.New()
		if err == nil {
			defer ns.Close()
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		fmt.Println(err)
	}
}
