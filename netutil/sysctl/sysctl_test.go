package sysctl_test

import (
	"errors"
	"testing"

	"svcproxy.dev/svcproxy/netutil/sysctl"
)

func TestGet(t *testing.T) {
	got, err := sysctl.Get("kernel/ostype")
	if got != "Linux" || err != nil {
		t.Errorf("Get(kernel/ostype) = %q, %v; want Linux", got, err)
	}
}

func TestGetErrors(t *testing.T) {
	tests := []struct{ name, want string }{
		{"net/ipv4/no_such", "reading sysctl net/ipv4/no_such: this kernel does not have it (is a module missing?)"},
		{"../../etc/passwd", `sysctl "../../etc/passwd": not a path below /proc/sys`},
		{"/etc/passwd", `sysctl "/etc/passwd": not a path below /proc/sys`},
		{"kernel", "reading sysctl kernel: is a directory"},
	}
	for _, tt := range tests {
		if _, err := sysctl.Get(tt.name); err == nil || err.Error() != tt.want {
			t.Errorf("Get(%q) error\n got: %v\nwant: %s", tt.name, err, tt.want)
		}
	}
	if _, err := sysctl.Get("net/no_such"); !errors.Is(err, sysctl.ErrUnknown) {
		t.Errorf("Get(net/no_such) = %v; want ErrUnknown", err)
	}
}

// Set does not write a value that is there already: kernel/ostype is read-only.
func TestSetSame(t *testing.T) {
	if err := sysctl.Set("kernel/ostype", "Linux"); err != nil {
		t.Errorf("Set(kernel/ostype, Linux) = %v; want nil", err)
	}
}

func TestSetReadOnly(t *testing.T) {
	want := `setting sysctl kernel/ostype to "Minix" (it is "Linux"): permission denied`
	if err := sysctl.Set("kernel/ostype", "Minix"); err == nil || err.Error() != want {
		t.Errorf("Set(kernel/ostype) error\n got: %v\nwant: %s", err, want)
	}
}
