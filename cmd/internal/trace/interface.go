package trace

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// interfaceName returns the name of an interface; empty: none. It asks for this one only:
// net.InterfaceByIndex lists all that the host has.
func interfaceName(index int) string {
	if index == 0 {
		return ""
	}
	name, err := askInterface(uint32(index))
	if err != nil {
		return fmt.Sprint("interface ", index)
	}
	return name
}

func askInterface(index uint32) (string, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("")
	if err != nil {
		return "", err
	}
	request.SetUint32(index)
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFNAME, request); err != nil {
		return "", err
	}
	return request.Name(), nil
}
