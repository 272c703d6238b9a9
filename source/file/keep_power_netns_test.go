//go:build netns

package file

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source/read"
)

const (
	// powerDir is set for a process that a test starts in a mount namespace of its
	// own, which takes mounts and loop device with it when it ends.
	powerDir = "SVCPROXY_TEST_POWER_DIR"

	// ext4Shutdown is EXT4_IOC_SHUTDOWN, and noLogFlush EXT4_GOING_FLAGS_NOLOGFLUSH:
	// what is not on the disk by now never gets there, fs/ext4/ext4.h.
	ext4Shutdown = 0x8004587d
	noLogFlush   = 2
)

// The power fails at any moment: every file has its newest version, as far as that
// is on the disk, or its last good one, and none is lost.
func TestPowerFailure(t *testing.T) {
	if dir := os.Getenv(powerDir); dir != "" {
		fail(t, dir)
		return
	}
	inMountNamespace(t, "TestPowerFailure")
}

// inMountNamespace runs a test again, in a mount namespace of its own.
func inMountNamespace(t *testing.T, name string) {
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", os.Args[0], "-test.run=^"+name+"$", "-test.timeout=30m", "-test.v")
	cmd.Env = append(os.Environ(), powerDir+"="+t.TempDir())
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	t.Logf("%s", out)
}

func fail(t *testing.T, dir string) {
	failures := 10
	if os.Getenv("SVCPROXY_SOAK") != "" {
		failures = 200
	}
	image := dir + "/disk"
	command(t, "truncate", "-s", "32M", image)
	command(t, "mkfs.ext4", "-q", image)
	p := &power{T: t, image: image, dir: dir + "/disk.d", files: map[string]*killed{}}
	check(t, os.Mkdir(p.dir, 0o755))
	for i := range 6 {
		p.files[fmt.Sprintf("f%d.toml", i)] = &killed{good: map[int]bool{0: true}}
	}
	for n := range failures {
		p.life(n * 1000)
		if t.Failed() {
			t.Fatalf("after %d power failures", n)
		}
	}
	t.Logf("%d power failures; files that the disk did not have whole after one: %d cut off or empty, %d missing", failures, p.cut, p.missing)
}

// A power is what TestPowerFailure knows.
type power struct {
	*testing.T
	image, dir   string
	cut, missing int

	mu    sync.Mutex
	files map[string]*killed // of which number is not used
	uses  string             // what the process said last of the services in use
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// life is one run, from the power coming on to its failure.
func (p *power) life(n int) {
	command(p.T, "mount", "-o", "loop", p.image, p.dir)
	defer command(p.T, "umount", p.dir)
	check(p.T, os.MkdirAll(p.dir+"/etc", 0o755))
	p.reboot()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), killDir+"="+p.dir, killPower+"=1")
	out, err := cmd.StdoutPipe()
	check(p.T, err)
	check(p.T, cmd.Start())
	var reader sync.WaitGroup
	reader.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.heed(lines.Text())
		}
	})
	defer func() { _ = cmd.Process.Kill(); reader.Wait(); _ = cmd.Wait() }()
	p.await(n > 0)
	d, err := os.Open(p.dir)
	check(p.T, err)
	defer d.Close()
	off := make(chan struct{})
	var editors sync.WaitGroup
	defer editors.Wait()
	for i := range len(p.files) {
		editors.Go(func() { p.edits(fmt.Sprintf("f%d.toml", i), n, off) })
	}
	editors.Go(func() { p.others(off) })
	time.Sleep(time.Duration(rand.IntN(600)) * time.Millisecond)
	check(p.T, unix.IoctlSetPointerInt(int(d.Fd()), ext4Shutdown, noLogFlush))
	close(off)
}

// edits edits a file until the power is off.
func (p *power) edits(name string, n int, off <-chan struct{}) {
	for {
		n++
		err := p.edit(name, n)
		select {
		case <-off:
			return
		case <-time.After(time.Duration(rand.IntN(100)) * time.Millisecond):
		}
		if err != nil && !errors.Is(err, unix.EIO) && !errors.Is(err, unix.EROFS) {
			p.Errorf("before the power failed: %v", err)
			return
		}
	}
}

// others are programs that have something else written: that makes the disk hold
// which files there are at that moment, and not what they say.
func (p *power) others(off <-chan struct{}) {
	for {
		f, err := os.Create(p.dir + "/other")
		if err == nil {
			_, err = f.WriteString("x")
			err = errors.Join(err, f.Sync(), f.Close())
		}
		select {
		case <-off:
			return
		case <-time.After(time.Duration(rand.IntN(30)) * time.Millisecond):
		}
		if err != nil && !errors.Is(err, unix.EIO) && !errors.Is(err, unix.EROFS) {
			p.Errorf("before the power failed: %v", err)
			return
		}
	}
}

// reboot makes it another boot for what was kept.
func (p *power) reboot() {
	marker := p.dir + "/state/lastgood/running"
	if _, err := os.Stat(marker); err == nil {
		check(p.T, os.WriteFile(marker, []byte("another boot\n"), 0o600))
	}
}

func (p *power) heed(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if uses, ok := strings.CutPrefix(line, "uses "); ok {
		p.uses = uses
	}
	heed(p.files, line+"\n")
}

// edit makes another version of a file, in one of the ways that editors have.
func (p *power) edit(name string, n int) error {
	first := fmt.Sprintf("%s %d\n", strings.TrimSuffix(name, ".toml"), n)
	text := first + strings.Repeat("none\n", rand.IntN(3000))
	path := filepath.Join(p.dir, "etc", name)
	switch rand.IntN(3) {
	case 0:
		return errors.Join(os.WriteFile(path+".tmp", []byte(text), 0o600), os.Rename(path+".tmp", path))
	case 1:
		return p.inPlace(path, first, text[len(first):])
	default:
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		pause()
		return os.WriteFile(path, []byte(text), 0o600)
	}
}

func pause() { time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) }

func (p *power) inPlace(path string, parts ...string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, part := range parts {
		pause()
		if _, err := f.WriteString(part); err != nil {
			return err
		}
	}
	return nil
}

// await waits until the services in use are those of the files on the disk, or
// where a file is not whole its last good ones.
func (p *power) await(known bool) {
	var wrong []string
	if !pace.Within(30*time.Second, func() bool { wrong = p.compare(); return len(wrong) == 0 }) {
		p.Errorf("%s", strings.Join(wrong, "\n"))
		return
	}
	if !known {
		return
	}
	for name := range p.files {
		switch n, err := p.onDisk(name); {
		case errors.Is(err, fs.ErrNotExist):
			p.missing++
		case n == 0:
			p.cut++
		}
	}
}

// compare says what is wrong with the services in use.
func (p *power) compare() (wrong []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	uses := map[string]int{}
	for s := range strings.SplitSeq(p.uses, ", ") {
		var name string
		var n int
		if _, err := fmt.Sscanf(s, "%s %d", &name, &n); err == nil {
			uses[name+".toml"] = n
		}
	}
	for name, k := range p.files {
		n, err := p.onDisk(name)
		switch {
		case n > 0 && uses[name] != n:
			wrong = append(wrong, fmt.Sprintf("%s has version %d, and %d is used", name, n, uses[name]))
		case n == 0 && !k.good[uses[name]]:
			wrong = append(wrong, fmt.Sprintf("%s is not whole (%v), and version %d is used; want one of %v", name, err, uses[name], k.good))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// onDisk returns which version a file has; 0: none.
func (p *power) onDisk(name string) (int, error) {
	data, err := os.ReadFile(filepath.Join(p.dir, "etc", name))
	if err != nil || len(data) == 0 {
		return 0, err
	}
	services, faults, _ := parseLines(read.Rules{}, context.Background(), name, data, nil)
	if len(faults) > 0 || len(services) != 1 {
		return 0, errors.New("no version")
	}
	return len(services[0].Endpoints), nil
}
