// Init is the first process of a guest, and the agent in it. As process 1 it
// mounts the root file system and goes on in one of two ways: it becomes the
// program that its arguments name, systemd, or without any it starts the agent
// itself and collects processes that lost their parents.
package main

import (
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/vmtests/internal/agent"
)

// agentPath is where the host puts this program into the root file system.
const agentPath = "/vmtests/init"

// setupPath is a script of the host that runs first.
const setupPath = "/vmtests/setup"

func main() {
	var err error
	switch {
	case os.Getpid() != 1:
		err = serve()
	case len(os.Args) > 1:
		err = become(os.Args[1:])
	default:
		err = supervise()
	}
	fmt.Fprintln(os.Stderr, "init:", err) // process 1: on the console
	if os.Getpid() == 1 {
		unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // QEMU is told to end then
	}
	os.Exit(1)
}

// serve answers the host.
func serve() error {
	port, err := openPort(agent.Port)
	if err != nil {
		return err
	}
	return agent.Serve(port)
}

// become makes process 1 another program, in the root file system.
func become(args []string) error {
	if err := enterRoot(); err != nil {
		return err
	}
	if err := runSetupScript(); err != nil {
		return err
	}
	return fmt.Errorf("executing %s: %w", args[0], unix.Exec(args[0], args, []string{"PATH=" + searchPath}))
}

func runSetupScript() error {
	cmd := exec.Command("/bin/sh", setupPath)
	cmd.Env = []string{"PATH=" + searchPath}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr // the console
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	return nil
}

// supervise starts the agent, and returns when that has ended.
func supervise() error {
	if err := enterRoot(); err != nil {
		return err
	}
	if err := configureGuest(); err != nil {
		return err
	}
	if err := runSetupScript(); err != nil {
		return err
	}
	child, err := os.StartProcess(agentPath, []string{agentPath}, &os.ProcAttr{
		Env:   []string{"PATH=" + searchPath, "HOME=/root"},
		Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		return fmt.Errorf("starting the agent: %w", err)
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if pid == child.Pid {
			return fmt.Errorf("the agent ended with %v, %v", status, err)
		}
	}
}
