package guest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/cavaliergopher/cpio"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/vmtests/internal/image"
)

// Where vmtests/cmd/init expects itself, to start as the agent, and the script to run first.
const (
	initPath  = "/vmtests/init"
	setupPath = "/vmtests/setup"
)

// agentUnit starts the agent under systemd.
const agentUnit = "vmtests-agent.service"

const agentUnitText = `[Unit]
Description=Agent of tests
DefaultDependencies=no
[Service]
ExecStart=` + initPath + `
Restart=always
StandardError=journal+console
`

// makeInitrd returns an initial root in memory: process 1, the modules to mount
// the root with, and files to copy there.
func makeInitrd(ctx context.Context, img image.Image, cfg Config) (*os.File, error) {
	init, err := Build(ctx, "svcproxy.dev/svcproxy/vmtests/cmd/init")
	if err != nil {
		return nil, err
	}
	modules, err := img.Modules()
	if err != nil {
		return nil, err
	}
	a, err := newArchive()
	if err != nil {
		return nil, err
	}
	a.add(File{Path: "/init", Mode: 0o755, Data: init})
	for _, m := range modules {
		a.addFrom(m, "/modules")
	}
	for _, f := range append(cfg.Files[:len(cfg.Files):len(cfg.Files)],
		File{Path: initPath, Mode: 0o755, Data: init},
		File{Path: setupPath, Mode: 0o755, Data: []byte("set -e\n" + cfg.Setup)},
		File{Path: "/etc/systemd/system/" + agentUnit, Mode: 0o644, Data: []byte(agentUnitText)}) {
		f.Path = path.Join("/files", f.Path)
		a.add(f)
	}
	return a.file, a.close()
}

// memoryFile returns a file that has no name and ends with its last descriptor.
func memoryFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("initrd", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), "initrd"), nil
}

// An archive writes files as the kernel reads them. The first error stays.
type archive struct {
	file *os.File
	w    *cpio.Writer
	made map[string]bool // directories
	err  error
}

func newArchive() (*archive, error) {
	f, err := memoryFile()
	if err != nil {
		return nil, err
	}
	return &archive{file: f, w: cpio.NewWriter(f), made: make(map[string]bool)}, nil
}

func (a *archive) addFrom(name, dir string) {
	data, err := os.ReadFile(name)
	if err != nil {
		a.fail(err)
		return
	}
	a.add(File{Path: path.Join(dir, filepath.Base(name)), Mode: 0o644, Data: data})
}

func (a *archive) add(f File) {
	a.addDir(path.Dir(f.Path))
	a.write(f.Path, cpio.TypeReg|cpio.FileMode(f.Mode.Perm()), f.Data)
}

// addDir adds a directory and those above it: the kernel makes none by itself.
func (a *archive) addDir(dir string) {
	if dir == "/" || a.made[dir] {
		return
	}
	a.addDir(path.Dir(dir))
	a.made[dir] = true
	a.write(dir, cpio.TypeDir|0o755, nil)
}

func (a *archive) write(name string, mode cpio.FileMode, data []byte) {
	name = strings.TrimPrefix(name, "/")
	a.fail(a.w.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: int64(len(data)), Links: 1}))
	_, err := a.w.Write(data)
	a.fail(err)
}

func (a *archive) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

func (a *archive) close() error {
	a.fail(a.w.Close())
	if a.err != nil {
		a.file.Close()
		return fmt.Errorf("writing a cpio archive: %w", a.err)
	}
	return nil
}

// Build builds a program of this module that needs nothing else in a guest.
func Build(ctx context.Context, pkg string) ([]byte, error) {
	return build(ctx, "build", "-trimpath", "-ldflags=-s -w", pkg)
}

// BuildTest builds the tests of a package, with tags divided by commas.
func BuildTest(ctx context.Context, pkg, tags string) ([]byte, error) {
	return build(ctx, "test", "-c", "-tags="+tags, pkg)
}

func build(ctx context.Context, args ...string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "svcproxy-vm-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "binary")
	last := len(args) - 1
	args = append(args[:last:last], "-buildvcs=false", "-o", binary, args[last])
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return os.ReadFile(binary)
}
