package sysctl_test

import (
	"fmt"

	"svcproxy.dev/svcproxy/netutil/sysctl"
)

func ExampleGet() {
	system, err := sysctl.Get("kernel/ostype")
	fmt.Println(system, err)
	_, err = sysctl.Get("net/ipv4/no_such_setting")
	fmt.Println(err)
	// Output:
	// Linux <nil>
	// reading sysctl net/ipv4/no_such_setting: this kernel does not have it (is a module missing?)
}
