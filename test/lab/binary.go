package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Environment variables of the lab.
const (
	EnvBinary = "SVCPROXY_LAB_BINARY" // a svcproxy to test, for hosts without Go
	EnvRace   = "SVCPROXY_LAB_RACE"   // "1": build svcproxy with the race detector
	EnvStops  = "SVCPROXY_LAB_STOPS"  // a number: how often TestStops stops a daemon in each mode
	EnvSeed   = "SVCPROXY_LAB_SEED"   // a number: have the random services and faults of an earlier run again
)

// Build builds svcproxy into dir, or takes the one that EnvBinary names. flags are further ones of go build.
func Build(dir string, flags ...string) (binary string, err error) {
	if path := os.Getenv(EnvBinary); path != "" {
		return filepath.Abs(path)
	}
	binary = filepath.Join(dir, "svcproxy"+strings.Join(flags, ""))
	cmd := exec.Command("go", append([]string{"build", "-buildvcs=false", "-o", binary}, flags...)...)
	if os.Getenv(EnvRace) == "1" {
		cmd.Args, cmd.Env = append(cmd.Args, "-race"), append(os.Environ(), "CGO_ENABLED=1")
	}
	cmd.Args = append(cmd.Args, "svcproxy.dev/svcproxy/cmd/svcproxy")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building svcproxy: %w\n%s", err, out)
	}
	return binary, nil
}
