//go:build netns

package hosts

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/test/lab"
)

// pushPort is where endpoints talk without being asked.
const pushPort = 8081

// pushEvery is how long such a server waits between two lines.
const pushEvery = 10 * time.Millisecond

// push starts servers on the endpoints that greet like others, and then send a line each moment
// and listen to nothing.
func (s *spread) push(t *testing.T) {
	t.Helper()
	var servers echotest.Servers
	t.Cleanup(servers.Close)
	for _, e := range s.endpoints {
		for _, addr := range e.Addr().Each() {
			var l net.Listener
			err := e.Do(func() (err error) {
				l, err = net.Listen("tcp", netip.AddrPortFrom(addr, pushPort).String())
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			servers.Run(l, func() { pushAll(&servers, e, l) })
		}
	}
}

func pushAll(servers *echotest.Servers, e *lab.Host, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		servers.Run(c, func() {
			from := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
			_, err := fmt.Fprintln(c, e.Role, pushPort, from)
			line := append(bytes.Repeat([]byte("."), 1023), '\n')
			for ; err == nil; time.Sleep(pushEvery) {
				_, err = c.Write(line)
			}
		})
	}
}

// A listening reads what connections are sent, and sends nothing but a keepalive each second.
type listening struct {
	list []*held
	wg   sync.WaitGroup
	mu   sync.Mutex
	read map[*held]int
	errs map[*held]error
}

func listen(list []*held) *listening {
	l := &listening{list: list, read: make(map[*held]int), errs: make(map[*held]error)}
	for _, c := range list {
		keepAlive(c)
		l.wg.Go(func() { l.follow(c) })
	}
	return l
}

// keepAlive has the client say something each second that it has nothing to say.
func keepAlive(c *held) {
	c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 60})
}

func (l *listening) follow(c *held) {
	buf := make([]byte, 4096)
	c.SetReadDeadline(time.Time{})
	for {
		n, err := c.Read(buf)
		l.mu.Lock()
		l.read[c] += n
		if err != nil {
			l.errs[c] = err
		}
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (l *listening) state(c *held) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.read[c], l.errs[c]
}

// goOn waits for each connection to be sent more, for which servers take a second.
func (l *listening) goOn(patience time.Duration) tally {
	before := make(map[*held]int)
	for _, c := range l.list {
		before[c], _ = l.state(c)
	}
	start := time.Now()
	return each(l.list, func(c *held) error {
		for {
			n, err := l.state(c)
			switch {
			case err != nil:
				return err
			case n > before[c]+64<<10: // what was on its way does not count
				return nil
			case pace.Over(start, patience):
				return fmt.Errorf("nothing came for %v", patience)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

func (l *listening) stop() {
	for _, c := range l.list {
		c.SetReadDeadline(time.Unix(1, 0))
	}
	l.wg.Wait()
}

// talking has connections echo line by line all the time. A busy endpoint may have confirmed a line whose echo is
// lost with the balancer: then only a keepalive tells the next one of the client, before the endpoint gives up.
type talking struct {
	stop chan struct{}
	done chan tally
}

func keepTalking(list []*held) *talking {
	k := &talking{make(chan struct{}), make(chan tally, 1)}
	for _, c := range list {
		keepAlive(c)
	}
	go func() {
		k.done <- each(list, func(c *held) error {
			for {
				select {
				case <-k.stop:
					return nil
				default:
				}
				if err := c.Echo(heldPatience); err != nil {
					return err
				}
				time.Sleep(time.Millisecond)
			}
		})
	}()
	return k
}

func (k *talking) end() tally {
	close(k.stop)
	return <-k.done
}
