package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/vmtests/internal/agent"
	"svcproxy.dev/svcproxy/vmtests/internal/image"
)

// EnvAccel names QEMU's accelerator. The default is emulation, which works
// everywhere; "kvm" is twenty times as fast where it works.
const EnvAccel = "SVCPROXY_VM_ACCEL"

// kernelArguments: crashes end the guest, and nothing measures, or guards against, what emulation has no use for. To
// guard it costs up to a fifth of the time. Programs that are loaded at random addresses cost half of it: QEMU
// then translates the code of each process again.
const kernelArguments = "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t mitigations=off random.trust_cpu=on tsc=reliable no_timer_check" +
	" init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off kfence.sample_interval=0 apparmor=0 audit=0 norandmaps"

// processor is the guest's, without cmpxchg16b, in whose emulation newer kernels crash in QEMU 7.2, and without the
// string instructions by which kernels copy and clear pages byte by byte where they are fast: emulated they are slow.
const processor = "max,-cx16,-erms,-fsrm"

// A machine is a QEMU process, or one that leads to a machine elsewhere, and the
// host's ends of what it is connected to.
type machine struct {
	pid     int
	serial  net.Conn
	console tail
	kill    context.CancelFunc
	ended   chan struct{} // closed when the process has ended

	// Of the process, when it has ended.
	err        error         // how it ended
	lived, ran time.Duration // from its start to its end, and its processor time in that
}

// start starts QEMU. It ends with ctx, with close, and with this process.
func start(ctx context.Context, cfg Config, img image.Image, initrd *os.File) (*machine, error) {
	serial, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	files := []*os.File{theirs, initrd} // 3 and 4
	cards, err := joinAll(cfg, 3+len(files))
	defer closeAll(append(cards.files, files...)) // QEMU has its own
	if err != nil {
		return nil, errors.Join(err, serial.Close())
	}
	return launch(ctx, serial, func(ctx context.Context, m *machine) *exec.Cmd {
		args := append([]string{"qemu-system-x86_64"}, append(arguments(cfg, img), cards.args...)...)
		cmd := command(ctx, args)
		cmd.ExtraFiles = append(files, cards.files...)
		cmd.Stdout, cmd.Stderr = &m.console, &m.console
		return cmd
	})
}

// attach starts a program that has an agent at its standard input and output.
func attach(ctx context.Context, args []string) (*machine, error) {
	serial, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	return launch(ctx, serial, func(ctx context.Context, m *machine) *exec.Cmd {
		cmd := command(ctx, args)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, &m.console
		return cmd
	})
}

// launch starts what prepare returns.
func launch(ctx context.Context, serial net.Conn, prepare func(context.Context, *machine) *exec.Cmd) (*machine, error) {
	ctx, kill := context.WithCancel(ctx)
	m := &machine{serial: serial, kill: kill, ended: make(chan struct{})}
	started := make(chan error)
	go m.run(prepare(ctx, m), started)
	if err := <-started; err != nil {
		kill()
		return nil, errors.Join(err, serial.Close())
	}
	return m, nil
}

// cards are network cards: QEMU's arguments, and the files that they name by number.
type cards struct {
	args  []string
	files []*os.File
}

// joinAll makes a card for each network. first is the number of the first file.
func joinAll(cfg Config, first int) (c cards, err error) {
	for i, n := range cfg.Networks {
		file, err := n.join()
		if err != nil {
			return c, err
		}
		c.args = append(c.args,
			"-netdev", fmt.Sprintf("stream,id=net%d,addr.type=fd,addr.str=%d", i, first+i),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=net%d,mac=%s,romfile=", i, macAddress(cfg.Name, i))) // nothing boots from it
		c.files = append(c.files, file)
	}
	return c, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// command returns a program that is killed when ctx ends, or this process.
func command(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// run keeps its thread as long as the program lives: Pdeathsig means the death of the
// thread that started the process.
func (m *machine) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		started <- err
		return
	}
	m.pid = cmd.Process.Pid
	start := time.Now()
	started <- nil
	m.err = cmd.Wait()
	m.lived, m.ran = time.Since(start), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
	m.kill()
	close(m.ended)
}

func (m *machine) close() error {
	m.kill()
	<-m.ended
	return m.serial.Close()
}

func arguments(cfg Config, img image.Image) []string {
	args := []string{
		"-name", cfg.Name,
		"-accel", cmp.Or(os.Getenv(EnvAccel), "tcg"),
		"-machine", "q35",
		"-cpu", processor,
		"-smp", strconv.Itoa(cmp.Or(cfg.CPUs, 2)),
		"-m", strconv.Itoa(cmp.Or(cfg.Memory, 1024)),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", img.Kernel(), "-initrd", "/dev/fd/4",
		"-append", appendLine(cfg),
		// Not stdio, which takes input too and blocks the guest when there is none.
		"-chardev", "file,id=console,path=/dev/fd/1", "-serial", "chardev:console",
		"-device", "virtio-serial-pci",
		"-chardev", "socket,id=agent,fd=3", "-device", "virtserialport,chardev=agent,name=" + agent.Port,
		"-object", "rng-random,filename=/dev/urandom,id=random", "-device", "virtio-rng-pci,rng=random",
		"-drive", "file=" + img.Root() + ",if=none,id=root,format=raw,readonly=on", "-device", "virtio-blk-pci,drive=root",
	}
	if cfg.Disk != "" {
		args = append(args, "-drive", "file="+cfg.Disk+",if=none,id=disk,format=raw", "-device", "virtio-blk-pci,drive=disk")
	}
	return args
}

// appendLine is the kernel's command line; what follows -- are arguments of process 1.
func appendLine(cfg Config) string {
	if cfg.System {
		return kernelArguments + counterRate() + " systemd.show_status=error systemd.wants=" + agentUnit + " -- /lib/systemd/systemd"
	}
	return kernelArguments + counterRate()
}

// socketPair returns a connection and the file of its other end, to hand on.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a pair of sockets: %w", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "serial")
	defer ours.Close()
	theirs := os.NewFile(uintptr(fds[1]), "serial")
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn, theirs, nil
}

// tailSize is how much of the console an error shows: some 60 lines.
const tailSize = 6000

// A tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

var _ io.Writer = (*tail)(nil)

func (t *tail) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	t.text = t.text[max(0, len(t.text)-tailSize):]
	return len(text), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
