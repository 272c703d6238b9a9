//go:build netns

package etcd

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source/remote"
)

// A host that is cut off reports it. When it is reachable again it gets all changes, even those that etcd has compacted since.
func TestCompactionBehindPartition(t *testing.T) {
	s := newServer(t)
	s.commit(put("a.toml", "1"), put("b.toml", "1"))
	f := follow(t, s.options())
	f.wait("a.toml=1", "b.toml=1")
	s.cut()
	f.waitFailed(time.Now())
	for i := range 20 {
		s.commit(put("a.toml", fmt.Sprint(i)))
	}
	last := s.commit(remove("b.toml"), put("c.toml", "1"))
	s.compact(last)
	if _, n := f.last(); n != 1 {
		t.Errorf("%d Sets while cut off", n)
	}
	s.heal()
	begin := time.Now()
	f.wait("a.toml=19", "c.toml=1")
	t.Logf("level %v after the partition has healed", time.Since(begin).Round(time.Millisecond))
	s.commit(put("a.toml", "end"))
	f.wait("a.toml=end", "c.toml=1")
}

// etcd may be killed, and may start after the host.
func TestServerDies(t *testing.T) {
	s := prepareServer(t)
	f := follow(t, s.options())
	f.waitFailed(time.Now())
	s.start()
	s.commit(put("a.toml", "1"))
	f.wait("a.toml=1")
	for range 3 {
		s.kill()
		f.waitFailed(time.Now())
		s.start()
		f.waitAnswer()
	}
	if _, n := f.last(); n > 2 { // an empty Set may come first
		t.Errorf("%d Sets, and nothing changed", n)
	}
	s.commit(put("a.toml", "2"))
	f.wait("a.toml=2")
}

// A member that hangs accepts packets and does not answer.
func TestServerHangs(t *testing.T) {
	s := newServer(t)
	s.commit(put("a.toml", "1"))
	f := follow(t, s.options())
	f.wait("a.toml=1")
	fatal.If(t, unix.Kill(s.etcd.Pid(), unix.SIGSTOP))
	f.waitFailed(time.Now())
	fatal.If(t, unix.Kill(s.etcd.Pid(), unix.SIGCONT))
	s.commit(put("a.toml", "2"))
	f.wait("a.toml=2")
}

// restore starts etcd from a backup, as a new cluster or as the same one.
func (s *server) restore(backup string, args ...string) {
	s.t.Helper()
	s.kill()
	s.incarnations++
	s.etcdctl(append([]string{"snapshot", "restore", backup, "--data-dir", s.data()}, args...)...)
	s.start()
}

// A restored backup is given with its own revision and cluster, even if its texts are the same, and is then followed.
func TestRestoredBackup(t *testing.T) {
	for name, args := range map[string][]string{
		"same cluster":    nil,
		"another cluster": {"--initial-cluster-token", "other"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			backup := filepath.Join(t.TempDir(), "backup")
			s.commit(put("a.toml", "1"))
			s.etcdctl("snapshot", "save", backup)
			s.commit(put("b.toml", "1"))
			f := follow(t, s.options())
			before := f.wait("a.toml=1", "b.toml=1")
			check := func(what string, set remote.Set) {
				t.Helper()
				now, then := number(t, set), number(t, before)
				if set.Counter == before.Counter && now >= then {
					t.Errorf("%s: revision %d of %s, after %d of %s", what, now, set.Counter, then, before.Counter)
				}
			}
			s.restore(backup, args...)
			set := f.wait("a.toml=1")
			check("restored", set)
			if (set.Counter == before.Counter) != (args == nil) {
				t.Errorf("%s after %s", set.Counter, before.Counter)
			}
			s.commit(put("a.toml", "2"))
			before = f.wait("a.toml=2")
			s.commit(put("b.toml", "2"), put("a.toml", "1"))
			s.commit(remove("b.toml"))
			before = f.wait("a.toml=1")
			_, n := f.last()
			s.restore(backup, args...)
			pace.Until(t, "the same texts of the backup", func() bool { _, now := f.last(); return now > n })
			check("restored with the same texts", f.wait("a.toml=1"))
		})
	}
}

// number returns the version of a Set.
func number(t *testing.T, s remote.Set) (n int64) {
	t.Helper()
	n, err := strconv.ParseInt(s.Version, 10, 64)
	fatal.If(t, err)
	return n
}

// If all keys are deleted, a Set without texts is given.
func TestEmptied(t *testing.T) {
	s := newServer(t)
	s.commit(put("a.toml", "1"), put("b.toml", "1"))
	f := follow(t, s.options())
	f.wait("a.toml=1", "b.toml=1")
	s.commit(removeAll())
	f.wait()
	s.commit(put("a.toml", "1"))
	f.wait("a.toml=1")
	if _, n := f.last(); n != 3 {
		t.Errorf("%d Sets, want 3", n)
	}
}

// If a member is down or has no leader, the host moves to a member with a leader.
func TestMembersFail(t *testing.T) {
	s := prepareServer(t)
	var members []*server
	var peers, urls []string
	for i := range 3 {
		peers = append(peers, fmt.Sprintf("m%d=http://127.0.0.1:%d", i, 2390+i))
	}
	for i := range 3 {
		m := *s
		m.dir = t.TempDir()
		url := fmt.Sprintf("http://192.0.2.1:%d", 2379+i)
		peer := strings.TrimPrefix(peers[i], fmt.Sprintf("m%d=", i))
		m.args = []string{"--name", fmt.Sprintf("m%d", i), "--listen-client-urls", url, "--advertise-client-urls", url,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", strings.Join(peers, ","),
			"--heartbeat-interval", "50", "--election-timeout", "500"}
		m.start()
		members, urls = append(members, &m), append(urls, url)
	}
	s.etcd = members[0].etcd
	s.commit(put("a.toml", "1"))
	o := s.options()
	o.Endpoints = urls[:1] // this member alone
	alone := follow(t, o)
	o.Endpoints = urls
	f := follow(t, o)
	alone.wait("a.toml=1")
	f.wait("a.toml=1")
	members[1].kill()
	members[2].kill()
	alone.waitFailed(time.Now())
	f.waitFailed(time.Now())
	members[1].start()
	s.commit(put("a.toml", "2"))
	f.wait("a.toml=2")
	alone.wait("a.toml=2")
}

// A login is used until it is refused. etcd forgets all logins when it restarts.
func TestLogin(t *testing.T) {
	s := newServer(t, "--bcrypt-cost", "4")
	s.commit(put("a.toml", "1"))
	for _, args := range [][]string{
		{"user", "add", "root:secret"}, {"user", "grant-role", "root", "root"},
		{"role", "add", "reader"}, {"role", "grant-permission", "reader", "--prefix=true", "read", testPrefix},
		{"user", "add", "host:pass"}, {"user", "grant-role", "host", "reader"}, {"auth", "enable"},
	} {
		s.etcdctl(args...)
	}
	root := "--user=root:secret"
	password := "wrong"
	o := s.options()
	var logins atomic.Int32
	o.Username, o.Password = "host", func() (string, error) {
		logins.Add(1)
		return password, nil
	}
	f := follow(t, o)
	pace.Until(t, "a refused login", func() bool { return strings.Contains(fmt.Sprint(f.problem()), "invalid user ID or password") })
	f.end()
	password = "pass"
	f = follow(t, o)
	f.wait("a.toml=1")
	f.waitAnswer()
	before := logins.Load()
	s.cut()
	f.waitFailed(time.Now())
	s.heal()
	f.waitAnswer()
	if n := logins.Load() - before; n != 0 {
		t.Errorf("%d logins after a partition", n)
	}
	s.kill()
	f.waitFailed(time.Now())
	s.start()
	f.waitAnswer()
	s.etcdctl(root, "put", testPrefix+"a.toml", "2")
	f.wait("a.toml=2")
	without := s.options()
	nobody := follow(t, without)
	nobody.waitFailed(time.Now())
}
