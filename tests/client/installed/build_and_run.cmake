# Installs the client into PREFIX, builds the project beside this file against it as a user would, and runs it
# where no cluster is. Needs BUILD_DIR (of this project), WORK_DIR, GENERATOR, CXX_COMPILER, CXX_FLAGS.
set(prefix ${WORK_DIR}/prefix)
file(REMOVE_RECURSE ${WORK_DIR})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN} failed:\n${output}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix} --component client)
file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/*)
if(NOT headers STREQUAL "ccs/client/client.h")
  message(FATAL_ERROR "installed headers are ${headers}")
endif()
file(READ ${prefix}/include/ccs/client/client.h header)
if(header MATCHES "grpc|google/protobuf|\\.pb\\.h")
  message(FATAL_ERROR "client.h exposes gRPC or protobuf")
endif()

run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK_DIR}/build -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${prefix}
  -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_CXX_FLAGS=${CXX_FLAGS})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)

# The README shows these two files.
file(READ ${CMAKE_CURRENT_LIST_DIR}/../../../client/README.md readme)
foreach(name CMakeLists.txt main.cc)
  file(READ ${CMAKE_CURRENT_LIST_DIR}/${name} text)
  string(FIND "${readme}" "${text}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "client/README.md does not show ${name} as it is here")
  endif()
endforeach()

# Port 1 of this machine: nothing listens there.
execute_process(COMMAND ${WORK_DIR}/build/trainer 127.0.0.1:1
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 1 OR NOT output MATCHES "^UNAVAILABLE: 127.0.0.1:1: ")
  message(FATAL_ERROR "the trainer said '${output}' and exited with ${result}")
endif()
file(REMOVE_RECURSE ${WORK_DIR})
