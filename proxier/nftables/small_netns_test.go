//go:build netns

package nftables_test

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

const inUserNamespace = "SVCPROXY_TEST_IN_USER_NAMESPACE"

// In a user namespace the kernel grants small buffers: a first load, a repair and
// one large service go in as many transactions as it takes.
func TestSmallBuffers(t *testing.T) {
	if os.Getenv(inUserNamespace) != "" {
		smallBuffers(t)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestSmallBuffers$", "-test.v")
	cmd.Env = append(os.Environ(), inUserNamespace+"=1")
	id := []syscall.SysProcIDMap{{Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: id, GidMappings: id, Pdeathsig: syscall.SIGKILL,
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func smallBuffers(t *testing.T) {
	h := newHost(t, policy.IPv6)
	shrink(t)
	for i := range 2_500 {
		res := backendtest.Web(h.Family, i, 10)
		h.World.Services[res.Key] = res
		for _, a := range res.RefusedAddrs {
			h.World.RefusedAddrs[a]++
		}
	}
	h.Sync(nil)
	h.Settled("first sync")
	large := func(first int) *policy.Resolved {
		s := backendtest.Service{Name: "large", Protocol: source.TCP, Targets: backendtest.Targets(h.Family, first, 10_000)}
		pool, _ := s.Pools()
		route := backendtest.Route(pool, policy.Everyone, policy.Reject)
		return s.Resolve(&policy.Frontend{Key: h.vip(9_000), Outside: route, FromLocal: route})
	}
	res := large(0)
	for _, step := range []struct {
		name string
		res  *policy.Resolved
	}{{"added", res}, {"changed", large(1)}, {"removed", nil}, {"added again", res}} {
		h.Sync(h.World.Put(res.Key, step.res))
		h.Settled("large service " + step.name)
	}
	nft(h, "flush ruleset")
	h.Sync(nil)
	h.Settled("all flushed")
	h.nft("flush map TABLE SLOTS\nflush chain TABLE services")
	h.Sync(nil)
	h.Settled("map flushed")
}

// shrink gives all netlink sockets of this process the buffers that a user
// namespace has where net.core.wmem_max and rmem_max were left alone.
func shrink(t *testing.T) {
	const standard = 212_992
	list, err := os.ReadDir("/proc/self/fd")
	fatal.If(t, err)
	shrunk := 0
	for _, e := range list {
		fd, err := strconv.Atoi(e.Name())
		fatal.If(t, err)
		if domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || domain != unix.AF_NETLINK {
			continue
		}
		for _, buffer := range []int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
			fatal.If(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, buffer, standard))
		}
		shrunk++
	}
	if shrunk == 0 {
		t.Fatal("no netlink socket was found")
	}
}
