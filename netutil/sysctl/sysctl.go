// Package sysctl reads and writes kernel settings under /proc/sys.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const root = "/proc/sys"

// ErrUnknown: this kernel, or this network namespace, does not have the setting,
// because of its version or a module that is not loaded.
var ErrUnknown = errors.New("this kernel does not have it (is a module missing?)")

// Get returns the value of a setting without the newline at its end. Names are
// paths below /proc/sys, as in "net/ipv4/ip_forward": an interface name in one
// may hold dots.
func Get(name string) (string, error) {
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("sysctl %q: not a path below %s", name, root)
	}
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return "", fmt.Errorf("reading sysctl %s: %w", name, reason(err))
	}
	return strings.TrimRight(string(b), "\n"), nil
}

// Set sets a value. A setting that already has it is not written, so that a
// read-only /proc/sys (in a container) does not matter then.
func Set(name, value string) error {
	old, err := Get(name)
	if err != nil {
		return err
	}
	if old == value {
		return nil
	}
	// Not os.WriteFile: it would try to create a missing file. Get has refused a name that leads elsewhere.
	f, err := os.OpenFile(filepath.Join(root, name), os.O_WRONLY, 0)
	if err != nil {
		return setError(name, old, value, err)
	}
	defer f.Close()
	if _, err := f.WriteString(value + "\n"); err != nil {
		return setError(name, old, value, err)
	}
	return nil
}

func setError(name, old, value string, err error) error {
	return fmt.Errorf("setting sysctl %s to %q (it is %q): %w", name, value, old, reason(err))
}

// reason removes the path from err: messages name the setting.
func reason(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return ErrUnknown
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
