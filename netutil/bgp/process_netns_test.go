//go:build netns

package bgp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/bgp"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

func init() { speakerMain = runSpeaker }

// settings are those of a bgp.Config that can be written as JSON.
type settings struct {
	AS              uint32
	ListenPort      int
	GracefulRestart time.Duration
	Peers           []bgp.Peer
}

// runSpeaker obeys one line at a time: "set PREFIX...", "shutdown PREFIX...", "state", "stop true", "stop false".
func runSpeaker() {
	var st settings
	if err := json.Unmarshal([]byte(os.Getenv(speakerEnv)), &st); err != nil {
		panic(err)
	}
	s, err := bgp.New(bgp.Config{
		AS: st.AS, RouterID: netip.MustParseAddr("10.99.0.2"), ListenPort: st.ListenPort, HoldTime: 3 * time.Second,
		GracefulRestart: st.GracefulRestart, Peers: st.Peers, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		panic(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(context.Background()) }()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		switch words[0] {
		case "state":
			_ = json.NewEncoder(os.Stdout).Encode(s.State())
		case "stop":
			s.Stop(words[1] == "true")
			fmt.Println(<-ended)
			return
		default:
			var list []bgp.Route
			for _, w := range words[1:] {
				list = append(list, bgp.Route{Prefix: netip.MustParsePrefix(w), Shutdown: words[0] == "shutdown"})
			}
			if err := s.SetRoutes(list); err != nil {
				panic(err)
			}
		}
	}
}

// A speaker is one in a process of its own.
type speaker struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startSpeaker(t *testing.T, ns *netnstest.Namespace, st settings) *speaker {
	t.Helper()
	b, err := json.Marshal(st)
	fatal.If(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), speakerEnv+"="+string(b))
	cmd.Stderr = os.Stderr
	s := &speaker{t: t, cmd: cmd}
	if s.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	fatal.If(t, err)
	s.out = bufio.NewReader(out)
	fatal.If(t, ns.Start(cmd))
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // may have ended
		_ = cmd.Wait()
	})
	return s
}

func (s *speaker) say(line string) {
	s.t.Helper()
	if _, err := fmt.Fprintln(s.in, line); err != nil {
		s.t.Fatal(err)
	}
}

func (s *speaker) state() (st []bgp.PeerState) {
	s.t.Helper()
	s.say("state")
	line, err := s.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &st)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return st
}

// stop ends the speaker as it is made to, kill as it is not.
func (s *speaker) stop(graceful bool) {
	s.t.Helper()
	s.say(fmt.Sprintf("stop %v", graceful))
	if line, err := s.out.ReadString('\n'); err != nil || line != "<nil>\n" {
		s.t.Fatalf("the speaker ended with %q, %v", line, err)
	}
}

func (s *speaker) kill() {
	s.t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
}
