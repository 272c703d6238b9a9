package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// envKeepalived is an archive with keepalived and its libraries, of a host like the guest that it is unpacked in.
const envKeepalived = "SVCPROXY_PEERS_KEEPALIVED"

// Keepalived returns the command that starts keepalived: of this host or, in a guest, of an archive, which is unpacked in dir.
func Keepalived(dir string) ([]string, error) {
	archive := os.Getenv(envKeepalived)
	if archive == "" {
		path, err := exec.LookPath("keepalived")
		return []string{path}, err
	}
	if out, err := exec.Command("tar", "-xf", archive, "-C", dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("unpacking keepalived: %w\n%s", err, out)
	}
	return []string{
		filepath.Join(dir, "lib64/ld-linux-x86-64.so.2"), "--library-path", filepath.Join(dir, "lib/x86_64-linux-gnu"),
		filepath.Join(dir, "usr/sbin/keepalived"),
	}, nil
}
