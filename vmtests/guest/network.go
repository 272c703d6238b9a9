package guest

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"sync"
)

const (
	// maxFrame is above the largest frame that a guest's card sends, 64 KiB of
	// payload that its kernel leaves to the card to divide.
	maxFrame = 1 << 17

	// queuedFrames is how many frames wait for a guest that does not take them. Further ones are lost, as in a switch.
	queuedFrames = 1024
)

// A Network joins guests by an Ethernet hub in this process: every frame goes to
// all others. Its last guest ends it.
type Network struct {
	mu    sync.Mutex
	ports map[*port]struct{}
}

// A port is the hub's side of one guest's card. Frames follow their length, 4
// bytes in network order, as QEMU's netdev stream has them.
type port struct {
	conn  net.Conn
	queue chan []byte // frames with their lengths
}

// join adds a guest, whose QEMU gets the file.
func (n *Network) join() (*os.File, error) {
	conn, file, err := socketPair()
	if err != nil {
		return nil, err
	}
	p := &port{conn: conn, queue: make(chan []byte, queuedFrames)}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ports == nil {
		n.ports = make(map[*port]struct{})
	}
	n.ports[p] = struct{}{}
	go p.send()
	go n.receive(p)
	return file, nil
}

// macAddress returns the address of a guest's card. It is the same after a
// reboot, for the others remember it.
func macAddress(guest string, card int) string {
	h := fnv.New32a()
	fmt.Fprint(h, guest, card)
	sum := h.Sum32()
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", byte(sum>>16), byte(sum>>8), byte(sum))
}

// receive passes on what a guest sends, until the guest ends.
func (n *Network) receive(p *port) {
	r := bufio.NewReaderSize(p.conn, maxFrame)
	for {
		frame, err := readFrame(r)
		if err != nil {
			break
		}
		n.broadcast(p, frame)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.ports, p)
	close(p.queue)
	p.conn.Close()
}

// readFrame returns a frame with its length in front.
func readFrame(r io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes", n)
	}
	frame := make([]byte, len(length)+int(n))
	copy(frame, length[:])
	_, err := io.ReadFull(r, frame[len(length):])
	return frame, err
}

func (n *Network) broadcast(from *port, frame []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for p := range n.ports {
		if p == from {
			continue
		}
		select {
		case p.queue <- frame:
		default:
		}
	}
}

// send gives a guest its frames. When that fails the guest has ended, which
// receive sees too; what is left in the queue goes nowhere.
func (p *port) send() {
	w := bufio.NewWriterSize(p.conn, maxFrame)
	for frame := range p.queue {
		w.Write(frame)
		if len(p.queue) == 0 {
			w.Flush()
		}
	}
}
